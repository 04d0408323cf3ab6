"""What every room needs: checks of arguments, options as text, what torch is doing around a call, tables."""
