"""Commands of the clinic: contours, sign-off, commissioning."""
