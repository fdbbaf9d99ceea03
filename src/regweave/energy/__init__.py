"""From images to an energy: cost volumes, the feature map Ψ, and the one place where weights and loss meet them."""

from __future__ import annotations
