"""The inner modules behind `attend`: call, request, plan, formula, and the values that a request is made of."""
