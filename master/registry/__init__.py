"""Operations on resources: decode, admit, store, answer."""
