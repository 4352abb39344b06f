"""`python -m hloscope`."""

from hloscope.cli import main

try:
    main()
finally:
    exec("")  # else an earlier Ctrl-C in a library's exec makes Python end as if by SIGINT, not with the exit code
