"""Models of heterogeneous (typed) graphs."""
