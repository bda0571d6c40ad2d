"""Each private torch name that breakfix uses still does what it is used for."""
