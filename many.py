import sys, io, contextlib
from regard.cli.main import main
for line in open(sys.argv[1]):
    import shlex
    args = shlex.split(line)
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try: code = main(args)
        except SystemExit as stop: code = stop.code
    print("$ regard", line.strip(), "->", code); print(err.getvalue().rstrip()[:1500] or out.getvalue()[:300])
