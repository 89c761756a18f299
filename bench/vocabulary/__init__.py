"""Operations of users as functions of PyTorch, with their sizes and operands."""
