#!/bin/sh
# Prints the first interpreter that is CPython >= 3.11 with venv and pip's bootstrap; says where it looked if there is none.
# $PYTHON, when set, is the only candidate: a wish is not second-guessed.
set -u
looked=
for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    path=$(command -v "$name" 2>/dev/null) || { looked="$looked
  $name: not on PATH"; continue; }
    answer=$("$path" -c '
import sys
if sys.version_info < (3, 11):
    sys.exit("it is %d.%d, 3.11 or later is needed" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError as error:
    sys.exit("%s; on Debian, install python3-venv" % error)
' 2>&1) && { printf '%s\n' "$path"; exit 0; }
    looked="$looked
  $path: $(printf '%s' "$answer" | tail -n 1)"
done
printf 'no Python >= 3.11 was found:%s\nset PYTHON=/path/to/python to name one.\n' "$looked" >&2
exit 1
