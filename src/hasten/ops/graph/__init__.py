"""Operations on sparse graphs."""
