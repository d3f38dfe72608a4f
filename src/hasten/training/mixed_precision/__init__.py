"""Find modules that overflow or deviate in lower precision, and keep them in fp32."""
