"use strict";
(() => {
  const root = document.documentElement;
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
  });
  // Paper cannot unfold: parts are open while it is printed, but for explanations and what only developers read.
  const folded = () => document.querySelectorAll("main details:not(.help):not(.screen):not([open])");
  window.addEventListener("beforeprint", () => folded().forEach((part) => {
    part.open = part.dataset.printed = true;
  }));
  window.addEventListener("afterprint", () => document.querySelectorAll("details[data-printed]").forEach((part) => {
    part.open = false;
    delete part.dataset.printed;
  }));
})();
