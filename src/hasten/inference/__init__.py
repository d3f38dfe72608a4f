"""What a finished run is used for, from its folder alone."""
