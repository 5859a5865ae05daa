# Replaces the file $P_FILE at once by what $P_AWK makes of it. Runs as the user who can write there anyway.
LC_ALL=C
export LC_ALL
umask 077
say() { printf '%s\t%s\t%s\t%s\t%s\n' "$P_MARK" "$1" "$P_WHOSE" "$2" "$P_FILE"; }
fail() {
    say failed "$(printf '%s' "$1" | tr '\t\n' '  ')"
    exit 0
}
f=$P_FILE
d=${f%/*}
d=${d:-/}
[ ! -L "$f" ] || fail 'it is a symbolic link'
[ ! -L "$d" ] || fail 'its directory is a symbolic link'
if [ -e "$f" ]; then
    [ -f "$f" ] || fail 'it is no regular file'
    owner=$(stat -c %u "$f")
    [ "$(id -u)" = 0 ] || [ "$owner" = "$(id -u)" ] || fail "it belongs to the user id $owner, and the new file would not"
    [ -r "$f" ] || fail 'it cannot be read'
elif [ "$P_WORK" = revoke ]; then
    exit 0
elif [ ! -d "$d" ]; then
    why=$(mkdir -m 700 "$d" 2>&1) || fail "its directory cannot be made: ${why##*: }"
    if command -v restorecon >/dev/null 2>&1; then restorecon "$d" 2>/dev/null; fi
fi
# Files that a killed run has left.
find "$d/." ! -name . -prune -name '.penstock.????????' -type f -mmin +60 -exec rm -f {} + 2>/dev/null
t=$(mktemp "$d/.penstock.XXXXXXXX" 2>&1) || fail "no file can be made beside it: ${t##*: }"
trap 'rm -f "$t"' EXIT
trap 'exit 143' HUP INT TERM
from=/dev/null
before=
if [ -e "$f" ]; then
    # With its mode, owner, lists of access rights and SELinux label.
    cp -a "$f" "$t" 2>/dev/null || cp -p "$f" "$t" 2>/dev/null || fail 'it cannot be copied'
    before=$(cksum <"$f")
    tr -d '\000' <"$f" | cmp -s - "$f" || fail 'it has a byte 0, so it is no text'
    from=$f
else
    chmod "$P_NEW" "$t"
fi
P_TEMP=$t
export P_TEMP
counts=$(awk "$P_AWK" <"$from") || fail 'the new file could not be written'
set -- $counts
[ $# -eq 3 ] && [ "$(wc -l <"$t")" -eq "$3" ] || fail 'the new file could not be written'
if [ "$1" -eq 0 ] && [ "$2" -eq 0 ]; then
    say same ''
    exit 0
fi
sync "$t" 2>/dev/null || sync
now=
[ ! -e "$f" ] || now=$(cksum <"$f")
[ ! -L "$f" ] && [ "$before" = "$now" ] || fail 'another program changed it just now: try again'
why=$(mv -f "$t" "$f" 2>&1) || fail "it cannot be replaced: ${why##*: }"
sync "$d" 2>/dev/null || sync
say changed "$1 $2"
