"""Find modules whose results overflow or deviate in a lower precision, and pin them to fp32."""
