"""Operations of users as functions of PyTorch, with the sizes and operands of their rows."""
