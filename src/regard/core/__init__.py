"""What a call of attention passes through: arguments, request, plan, formula, and the values they are made of."""
