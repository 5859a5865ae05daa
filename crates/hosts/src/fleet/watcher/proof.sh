# Proves which processes belong to a command, and signals those and no others. For any POSIX sh (dash, bash, busybox) with
# tr and grep and a Linux /proc. The lines are joined with blanks before they are sent, so each ends where a blank may
# follow. The text has no single quote, so that one pair of them quotes it.
#
# The command has process number $P, start time $T, process group $G, session $S and nonce $N. $within is set where this
# shell itself has been in that group and session since before the command began: then the kernel has given neither number
# to other processes. $before has what was proved before, as " PID:START PID:START ". $mine is set where the program that runs
# this has made the session of the command: then only descendants of the command are in it, and need not be looked at.

# look PID: its state, parent, group, session and start time; fails where no such process runs. The name in /proc may hold
# any byte, a line end or ") " included; only numbers follow the last ") ".
look() {
line=; while IFS= read -r part; do line="$line$part "; done </proc/$1/stat;
set -- ${line##*) }; state=$1 parent=$2 group=$3 session=$4 start=${20};
[ "$start" ] && [ "$state" != Z ]; };

# introduce: prints what identifies this shell, which is about to become the command, and then its parent, the server,
# if that is a process of the same user: with - for its start time where /proc hides it (hidepid of proc(5)). It prints
# nothing where the proof would lack its tools. Signal 0 is sent to no process: the kernel only says whether it could be.
introduce() {
command -v tr >/dev/null && command -v grep >/dev/null && look $$ || return 1; seen="$$ $start $group $session";
if kill -0 $PPID; then look $PPID || start=-; seen="$seen $PPID $start"; fi;
echo $seen; };

# serves PID START: the server runs. Where /proc hides it, another process that has its number may be taken for it: then
# the watcher only waits longer.
serves() { if [ "$2" = - ]; then kill -0 $1; else look $1 && [ "$start" = "$2" ]; fi; };

# is_alive: the command runs. A number and a start time identify a process until the next boot.
is_alive() { look $P && [ "$start" = "$T" ]; };

# is_left: something runs in the group of this number, which may be another one by now.
is_left() { kill -0 -$G; };

# nonces PID: the nonces in its environment, each a whole entry.
nonces() { tr "\000" "\n" </proc/$1/environ | grep "^PENSTOCK_WATCHER="; };

# is_other PID: the nonce of another command is in its environment.
is_other() { nonces $1 | grep -qvx "PENSTOCK_WATCHER=$N"; };

# is_own PID: the nonce of this command is in its environment.
is_own() { nonces $1 | grep -qx "PENSTOCK_WATCHER=$N"; };

# descends PID: the process, or one of its parents, is the command or was proved before.
descends() {
one=$1 steps=64; while [ "$one" -gt 1 ] && [ $steps -gt 0 ]; do
look $one || return 1;
case "$before" in *" $one:$start "*) return 0;; esac;
[ "$lives" ] && [ "$one:$start" = "$P:$T" ] && return 0;
one=$parent steps=$((steps - 1)); done; return 1; };

# belongs PID: a process of the group is the command, or descends from it, and is not of another command. A session that
# the command itself leads has no members but its descendants, orphans included (setsid(2), setpgid(2)).
belongs() {
if [ "$1" = "$P" ]; then [ "$lives" ];
elif [ "$S" != "$P" ]; then descends $1;
elif [ "$lives$pinned" ]; then :;
else is_own $1; fi && if is_other $1; then return 1; fi; };

# still PID:START: a process that was proved is the same and in the same place, at this moment.
still() { look ${1%:*} && [ "$start $group $session" = "${1#*:} $G $S" ]; };

# seek: finds the processes of the group that belong to the command, for $proved and $before, and sets $whole if these are
# all of the group.
seek() {
pinned=; [ "$within" ] && look $$ && [ "$group $session" = "$G $S" ] && pinned=1;
whole=1 proved=" "; for file in $(grep -ls ") . [0-9]* $G $S " /proc/[0-9]*/stat); do
pid=${file#/proc/} pid=${pid%/stat}; [ "$pid" = $$ ] && continue;
look $pid && [ "$group $session" = "$G $S" ] || continue; when=$start;
if belongs $pid; then proved="$proved$pid:$when "; else whole=; fi; done;
case "$proved" in *" $P:"*) ;; *) if [ "$lives" ]; then whole= proved="$proved$P:$T "; fi;; esac;
before=$proved; };

# settle: waits until the processes of $stopped have stopped, each for some tenths of a second of this shell's time: one
# that is in fork(2) ends that first.
settle() {
for one in $stopped; do steps=3000; while still $one && [ "$state" != T ] && [ $steps -gt 0 ]; do
steps=$((steps - 1)); done; done; };

# freeze: stops what was proved, and what that started meanwhile: a process that is stopped starts no other. Once its parent
# has ended, nothing proves where a process came from. Of hundreds of processes it stops the first ones.
freeze() {
stopped=" " new=1; while [ "$new" ] && [ ${#stopped} -lt 9999 ]; do new=; for one in $proved; do
case "$stopped" in *" $one "*) ;; *) still $one && kill -STOP ${one%:*} && new=1 stopped="$stopped$one ";; esac; done;
[ "$new" ] && settle && seek; done; whole=; };

# end SIGNAL: sends it to the whole group if every process in it belongs to the command, else to each that does. Fails
# where nothing is proved, and sends nothing then. A process with another start time shows that $P has been given again.
end() {
[ "$P" -gt 1 ] && [ "$T" -gt 0 ] || return 1;
lives=; if is_alive; then
if is_other $P; then return 1; fi; [ "$group $session" = "$G $S" ] && lives=1;
elif [ "$start" ] && [ "$start" != "$T" ]; then return 1; fi;
if [ "$mine$lives" = 11 ] && [ "$G $S" = "$P $P" ]; then kill -$1 -$G; return 0; fi;
seek; [ "$proved" != " " ] || return 1;
[ "$G" = "$P" ] || whole=; [ "$whole" ] || freeze; for one in $proved; do still $one || continue;
if [ "$whole" ]; then kill -$1 -$G; return 0; fi; kill -$1 ${one%:*}; done;
for one in $stopped; do still $one && kill -CONT ${one%:*}; done; :; };
