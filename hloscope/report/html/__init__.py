"""One file that shows a program in a browser: self-contained, without a network, safe to hand on."""
