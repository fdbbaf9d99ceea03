import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from regweave.report.page import cell, environment, render, visible

HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "\"'><b onclick=x>", "<!--", "]]>"]


class Tags(HTMLParser):
    """Names of the elements that a text opens, and the content of the scripts that hold data."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.data, self._in_data = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.opened.append(tag)
        self._in_data = tag == "script" and ("type", "application/json") in attrs

    def handle_endtag(self, tag):
        self._in_data = False

    def handle_data(self, data):
        if self._in_data:
            self.data += data


PAGE = '{% extends "base.j2" %}{% block title %}{{ title }}{% endblock %}{% block main %}{{ body }}{% endblock %}'


def document(title: object, body: object = "", **frame: object) -> str:
    return render(environment().from_string(PAGE), {"title": title, "body": body}, **frame)


def table(*arguments: object, **more: object) -> str:
    return str(environment().get_template("macros.j2").module.table(*arguments, **more))


def test_text_opens_no_element_and_data_comes_back():
    for text in HOSTILE:
        printed = environment().from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text)
        assert Tags(printed).opened == ["p"]
        assert Tags(table(["a", text], [[text, text]], caption=text)).opened == [
            "div", "table", "caption", "thead", "tr", "th", "th", "tbody", "tr", "th", "td",
        ]  # fmt: skip
        assert Tags(document(text, text)).opened == Tags(document("plain")).opened
        value = {"name": text, "list": [1, None, "\u2028"]}
        page = document("t", data={"d": value})
        assert Tags(page).opened == [*Tags(document("t")).opened, "script"]
        assert json.loads(Tags(page).data) == value


def test_cells_and_numbers_and_marks_that_turn_text_around():
    for value, text in ((0.12345, "0.123"), (None, "–"), (float("nan"), "–"), (3, 3), (Markup("<b>"), "<b>")):
        assert cell(value) == text
    shown = table(["name", "n"], [["a", 1]], numeric={1})
    assert '<td class="number">1</td>' in shown
    assert '<th scope="row">a</th>' in shown
    assert visible("a\u202eb\x00") == "a\ufffdb\ufffd"
    assert "a\ufffdb" in document("a\u202eb")
    assert "a\ufffd<wbr>+b" in environment().get_template("macros.j2").module.breakable("a\u202e+b")
    with pytest.raises(UndefinedError, match="body"):
        render(environment().from_string(PAGE), {"title": "t"})
    with pytest.raises(ValueError, match="JSON"):
        document("t", data={"d": [float("nan")]})


def test_only_the_page_s_own_scripts_and_styles_may_run():
    page = document("t", Markup("<p>x</p>"), style=".a { color: red; }", scripts=["let a = '<';"])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page).group(1)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    bodies = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, flags=re.DOTALL)
    assert len(bodies) == 3
    for body in bodies:
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
