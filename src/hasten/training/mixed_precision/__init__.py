"""Find modules that do not hold in a lower precision, and pin them to fp32."""
