"""Serve a trained model over HTTP (extra ``serve``)."""
