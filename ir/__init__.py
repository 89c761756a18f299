"""What a program is: types, expressions, statements, graphs, kernels; printing, parsing, verifying."""
