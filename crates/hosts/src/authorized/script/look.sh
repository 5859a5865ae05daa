# Tells of this host: its sshd, its accounts, their files of keys. With P_MODE=change it changes them first.
# Each line of its own begins with $P_MARK and has fields with tabs between; each line of a file begins with a colon.
LC_ALL=C
export LC_ALL
umask 077
set -f
PATH=$PATH:/usr/sbin:/sbin

say() {
    printf '%s' "$P_MARK"
    for field; do printf '\t%s' "$field"; done
    echo
}

me=$(id -u)
login=${SUDO_USER:-$(id -un)}
say host "$me" "$login"
[ -n "$P_ACCOUNT" ] || P_ACCOUNT=$login

# The sshd that serves this session shows its own command line.
command_of_sshd() {
    pid=$PPID
    for step in 1 2 3 4 5 6 7 8 9 10 11 12; do
        [ "${pid:-0}" -gt 1 ] || break
        title=$(cat "/proc/$pid/cmdline" 2>/dev/null | tr '\000' ' ')
        case $title in
            "sshd: "*" [listener]"*)
                title=${title#sshd: }
                printf '%s' "${title%%" [listener]"*}"
                return
                ;;
        esac
        pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    done
    command -v sshd
}
sshd_line=$(command_of_sshd)

# Prints the settings that are in effect, for a log-in to the account $1, or without any.
settings() {
    account=$1
    set -- $sshd_line
    [ $# -gt 0 ] || { echo 'there is no sshd'; return 1; }
    program=$1
    shift
    count=$#
    while [ "$count" -gt 0 ]; do
        word=$1
        shift
        count=$((count - 1))
        case $word in
            -f | -o | -h)
                [ "$count" -gt 0 ] || break
                set -- "$@" "$word" "$1"
                shift
                count=$((count - 1))
                ;;
            -f?* | -o?* | -h?*) set -- "$@" "$word" ;;
        esac
    done
    if [ -n "$account" ]; then
        from=${SSH_CONNECTION%% *}
        set -- "$@" -C "user=$account,host=${from:-127.0.0.1},addr=${from:-127.0.0.1}"
    fi
    "$program" -T "$@" 2>&1
}

# Tells those settings that say who may log in; of the account $1, if there is one.
tell_settings() {
    if found=$(settings "$1"); then
        printf '%s\n' "$found" | P_OF=$1 awk '
            $1 ~ /^(authorizedkeysfile|authorizedkeyscommand|trustedusercakeys|passwordauthentication)$/ ||
            $1 ~ /^(kbdinteractiveauthentication|permitrootlogin|permitemptypasswords|authenticationmethods)$/ {
                name = $1
                sub(/^[^ ]+ ?/, "")
                printf "%s\tsshd\t%s\t%s\t%s\n", ENVIRON["P_MARK"], ENVIRON["P_OF"], name, $0
            }'
        files=$(printf '%s\n' "$found" | sed -n 's/^authorizedkeysfile //p')
    else
        say nosshd "$1" "$(printf '%s\n' "$found" | tail -n 1 | tr '\t' ' ')"
        files=
    fi
}
tell_settings ''
files_of_all=${files:-.ssh/authorized_keys .ssh/authorized_keys2}

# With Match blocks the settings differ from account to account.
configuration=/etc/ssh/sshd_config
set -- $sshd_line
while [ $# -gt 1 ]; do
    [ "$1" != -f ] || configuration=$2
    shift
done
matches=no
set +f
set --
[ "$configuration" != /etc/ssh/sshd_config ] || set -- /etc/ssh/sshd_config.d/*.conf
cat "$configuration" "$@" 2>/dev/null | grep -qi '^[[:space:]]*match[[:space:]]' && matches=yes
set -f

# Lines as in passwd(5) of the accounts that this run is about.
accounts() {
    if [ "$P_SCOPE" = one ]; then
        getent passwd "$P_ACCOUNT" 2>/dev/null || P_OF=$P_ACCOUNT awk -F: '$1 == ENVIRON["P_OF"]' /etc/passwd
    elif [ "$me" = 0 ]; then
        getent passwd 2>/dev/null || cat /etc/passwd
    else
        getent passwd "$me" 2>/dev/null || printf '%s:x:%s:%s::%s:/bin/sh\n' "$(id -un)" "$me" "$(id -g)" "$HOME"
    fi
}

# Makes $path of the pattern $1 for the account $2 with the home $3 and the user id $4 (sshd_config(5), TOKENS).
expand() {
    left=$1 path=
    while :; do
        case $left in
            *%*)
                path=$path${left%%"%"*}
                left=${left#*"%"}
                case $left in
                    h*) path=$path$3 ;;
                    u*) path=$path$2 ;;
                    U*) path=$path$4 ;;
                    %*) path=$path% ;;
                    *) return 1 ;;
                esac
                left=${left#?}
                ;;
            *)
                path=$path$left
                break
                ;;
        esac
    done
    case $path in /*) ;; *) path=${3%/}/$path ;; esac
}

# Evaluates $P_RUN as the user with the id $1, the group $2 and the name $3: what it opens in that user's directories, the
# user could open too.
if setpriv --reuid 0 --regid 0 --init-groups true 2>/dev/null; then
    becomes=setpriv
elif command -v runuser >/dev/null 2>&1; then
    becomes=runuser
else
    becomes=su
fi
as() {
    case $me,$1,$becomes in
        0,0,* | [!0]*) sh -c 'eval "$P_RUN"' ;;
        *,setpriv) setpriv --reuid "$1" --regid "$2" --init-groups sh -c 'eval "$P_RUN"' ;;
        *,runuser) runuser -u "$3" -- sh -c 'eval "$P_RUN"' ;;
        *) su -s /bin/sh "$3" -c 'eval "$P_RUN"' ;;
    esac </dev/null
}

# Whether root alone can change the directory $1 and those above it.
of_root() {
    up=$1
    while :; do
        set -- $(stat -c '%u %g %a' "$up")
        [ "$1" = 0 ] || return 1
        case $3 in
            1???) ;;
            *[2367]?) [ "$2" = 0 ] || return 1 ;;
        esac
        case $3 in 1???) ;; *[2367]) return 1 ;; esac
        [ "$up" = / ] && return 0
        up=${up%/*}
        up=${up:-/}
    done
}

refuse() { say failed "$P_WHOSE" "$1" "$P_FILE"; }

# Changes the file $4 of the account $1 with the user id $2 and the group $3.
change() {
    P_WHOSE=$1 P_FILE=$4 P_NEW=600
    directory=${4%/*}
    there=$directory
    while [ ! -d "$there" ]; do
        [ ! -e "$there" ] && [ ! -L "$there" ] || { refuse 'a part of its path is no directory'; return; }
        there=${there%/*}
        there=${there:-/}
    done
    P_RUN=$P_APPLY
    export P_WHOSE P_FILE P_NEW P_RUN
    keeper=$(stat -L -c %u "$there")
    if [ "$me" != 0 ]; then
        as "$2" "$3" "$1"
    elif [ "$keeper" = 0 ]; then
        real=$(cd -P "$there" && pwd -P)
        of_root "$real" || { refuse 'others than root can change a directory above it'; return; }
        P_FILE=${real%/}${4#"${there%/}"}
        [ "$2" = 0 ] || P_NEW=644
        as 0 0 root
    elif [ "$keeper" = "$2" ]; then
        as "$2" "$3" "$1"
    else
        refuse "its directory belongs to the user id $keeper"
    fi
}

# Shows the file $4 of the account $1 with the user id $2 and the group $3.
show() {
    [ -e "$4" ] || [ -L "$4" ] || return
    P_FILE=$4 P_RUN='[ -f "$P_FILE" ] && [ -r "$P_FILE" ]'
    export P_FILE P_RUN
    reader=$2
    # A file of root in a directory of root: only root may be able to read it.
    [ -L "$4" ] || [ "$(stat -c %u "$4")" != 0 ] || reader=0
    if as "$reader" "$3" "$1"; then
        say file "$1" "$4"
        P_RUN='head -c 1048577 <"$P_FILE"'
        as "$reader" "$3" "$1" | sed 's/^/:/'
        echo
    else
        say unseen "$1" 'it cannot be read, or is no regular file' "$4"
    fi
}

present() { [ -e "$path" ] || [ -L "$path" ]; }

# Calls $1 for each account, with the patterns of its files of keys in $files.
each() {
    number=0
    accounts | while IFS=: read -r name password uid gid person home shell; do
        number=$((number + 1))
        if [ "$number" -gt 20000 ]; then
            say unseen '*' 'only the first 20,000 accounts were looked at' /etc/passwd
            break
        fi
        files=$files_of_all
        case $matches,$name,$shell in
            no,* | *,*[,=]*,* | *,*/nologin | *,*/false) ;;
            *)
                tell_settings "$name" </dev/null
                files=${files:-$files_of_all}
                ;;
        esac
        "$1"
    done
}

show_one() {
    for pattern in $files; do
        expand "$pattern" "$name" "$home" "$uid" || continue
        case $pattern in
            none) ;;
            /*%*) show "$name" "$uid" "$gid" "$path" ;;
            # One file for all accounts.
            /*) [ "$number" -gt 1 ] || show '*' "$me" 0 "$path" ;;
            *) show "$name" "$uid" "$gid" "$path" ;;
        esac
    done
}

change_one() {
    for pattern in $files; do
        expand "$pattern" "$name" "$home" "$uid" || continue
        case $P_WORK,$pattern in
            *,none) ;;
            revoke,/*%* | revoke,[!/]*)
                if present; then change "$name" "$uid" "$gid" "$path"; fi
                ;;
            revoke,/*)
                if [ "$number" -eq 1 ] && present; then change '*' "$me" 0 "$path"; fi
                ;;
            deploy,/*%* | deploy,[!/]*)
                change "$name" "$uid" "$gid" "$path"
                return
                ;;
            deploy,/*)
                P_WHOSE=$name P_FILE=$path
                refuse 'it is for all accounts of the host: AuthorizedKeysFile of sshd has no %u and no %h'
                return
                ;;
        esac
    done
}

if [ "$P_SCOPE" = one ]; then
    if [ -z "$(accounts)" ]; then
        say failed "$P_ACCOUNT" 'there is no such account' -
    elif [ "$me" != 0 ] && [ "$P_ACCOUNT" != "$(id -un)" ]; then
        say failed "$P_ACCOUNT" "$(id -un) may not change it: log in as root, or --sudo" -
        P_MODE=look
    fi
fi
if [ "$P_MODE" = change ]; then each change_one; fi
each show_one
say end
