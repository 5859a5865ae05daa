//! What is sent to a host so that its command ends when we vanish.
//!
//! A server that loses its client closes the pipes of a command and leaves it running. So the command line starts a
//! small watcher beside the command: it waits for the end of the connection and then ends the command's process group.
//! The command takes the place of the shell that started the watcher (`exec`), so its exit status, its signals, its
//! process group and its place below the server are what they are without a leash; it is run by the user's login shell as
//! the server would do it. Its environment has one variable more, `PENSTOCK_LEASH`, with a nonce.
//!
//! A mark on standard output, which [`Mark`] takes out again, says that the leash holds, and what identifies the command:
//! process number, start time, process group and session. A signal goes only to processes that are proved to belong to
//! it, by these four and the nonce, at the moment of the signal (`leash/proof.sh`); so does the one that [`signal`] sends
//! from a second channel of the connection. Where the proof is missing, nothing is signalled.
//!
//! Needs a POSIX `sh` and `/proc` on the far side. Where something else takes the command (a forced command,
//! an appliance), no mark comes. Without `/proc`, `tr` or `grep` the mark comes without an identity: then
//! only the server can end the command, if it obeys the request to signal it (RFC 4254 section 6.9).

/// The variable in the environment of a command that holds its nonce.
pub const VARIABLE: &str = "PENSTOCK_LEASH";

/// How the watcher learns that we are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The command has no input: the watcher reads it, and it ends with the connection. Keep it open until the end.
    None,
    /// The command reads it, so the watcher looks every second whether the server's process for this connection lives.
    Sent,
}

/// The command line to send for `command`. `nonce` is letters and digits.
#[must_use]
pub fn wrap(command: &str, input: Input, nonce: &str) -> String {
    let (take, redirect, after) = match input {
        // `&` gives a process /dev/null as input unless it is redirected: hence the detour over 3.
        Input::None => (WITHOUT_INPUT, "<&3 3<&-", "3<&-"),
        Input::Sent => (":", "</dev/null", "3<&-"),
    };
    // What identifies the command is looked for in a subshell, and kept in positional parameters: no variable of the
    // command's environment changes. The second pair of parentheses gives the watcher away, so that the command has no
    // child that it did not start.
    // A second login shell must not read its start files a second time: bash does if it thinks that it is the first.
    let script = format!(
        "{take}; set -- \"$1\" \"$2\" \"$3\" $(exec 2>/dev/null; eval \"$2\"; introduce); \
         {VARIABLE}={nonce}; export {VARIABLE}; \
         [ $# -gt 3 ] && (sh -c \"$2$3\" {NAME} ${VARIABLE} $4 $5 $6 $7 $8 $9 {redirect} >/dev/null 2>&1 &); \
         exec {after}; echo {mark} $4 $5 $6 $7; \
         case ${{SHELL:=/bin/sh}} in *bash) SHLVL=1; export SHLVL;; esac; exec \"$SHELL\" -c \"$1\"",
        mark = mark(nonce),
    );
    let watcher = quote(&watcher(input));
    format!("exec sh -c {} sh {} {} {watcher}", quote(&script), quote(command), quote(&proof()))
}

/// What identifies a command on its host until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandId {
    /// Its process number.
    pub process: u32,
    /// When it was started, in ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub start: u64,
    /// Its process group; 0 if that has no number where the command runs, as in a container.
    pub group: u32,
    /// Its session; 0 likewise.
    pub session: u32,
}

impl CommandId {
    /// Reads the four numbers of a mark. A server may send any text: numbers that no command can have give
    /// `None`.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (process, start, group, session) = (number()?, number()?, number()?, number()?);
        let id = |number: u64| u32::try_from(number).ok().filter(|id| *id <= i32::MAX.cast_unsigned());
        let started = Self { process: id(process)?, start, group: id(group)?, session: id(session)? };
        (words.next().is_none() && started.process > 1 && start > 0).then_some(started)
    }
}

/// A signal that ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSignal {
    /// It may clean up.
    Term,
    /// It may not.
    Kill,
}

impl EndSignal {
    /// As the SSH protocol and kill(1) call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Kill => "KILL",
        }
    }
}

/// The command line that signals what is proved to belong to a command, for a second channel of its connection. It ends
/// with a status other than 0 if nothing was proved, and nothing signalled. What is left 3 s after `TERM` of what was proved then
/// is killed, as by the watcher: the command itself may have ended meanwhile, and the client be gone.
#[must_use]
pub fn signal(command: &CommandId, nonce: &str, signal: EndSignal) -> String {
    let CommandId { process, start, group, session } = command;
    let set = format!("P={process} T={start} G={group} S={session} N={nonce} within= before= mine=");
    let then = match signal {
        EndSignal::Term => " || exit 1; (sleep 3; end KILL) >/dev/null &",
        EndSignal::Kill => "",
    };
    let script = format!("exec 2>/dev/null; {}{set}; end {}{then}", proof(), signal.name());
    format!("exec sh -c {}", quote(&script))
}

/// `leash/proof.sh` on one line, without its comments, ending in a blank: functions of the shell that prove which processes
/// belong to a command, and signal those.
#[must_use]
pub fn proof() -> String {
    let lines = PROOF.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| [line, " "]).collect()
}

const PROOF: &str = include_str!("leash/proof.sh");

/// A command that came on a leash, as a host of the lab sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leashed {
    /// The command itself.
    pub command: String,
    /// The line that says that the leash holds.
    pub mark: String,
    /// Who reads the input.
    pub input: Input,
}

/// Takes apart what [`wrap`] made, or `None` if it did not.
#[must_use]
pub fn unwrap(line: &str) -> Option<Leashed> {
    let (script, rest) = unquote(line.strip_prefix("exec sh -c ")?)?;
    let (command, rest) = unquote(rest.strip_prefix(" sh ")?)?;
    let (proof, rest) = unquote(rest.strip_prefix(' ')?)?;
    let (_, rest) = unquote(rest.strip_prefix(' ')?)?;
    let (nonce, _) = script.split_once("echo penstock-leash-")?.1.split_once(' ')?;
    let input = if script.starts_with(WITHOUT_INPUT) { Input::None } else { Input::Sent };
    let mark = format!("{} {IN_PROCESS} 1 {IN_PROCESS} {IN_PROCESS}\n", mark(nonce));
    (rest.is_empty() && proof == self::proof()).then_some(Leashed { command, mark, input })
}

/// A process number that Linux gives to no process (PID_MAX_LIMIT is 4,194,304): for a host that runs commands without one.
const IN_PROCESS: u32 = 4_194_305;

/// Undoes [`quote`] at the start of `text`, and gives the rest.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('\'')?;
    let mut word = String::new();
    loop {
        let (part, after) = rest.split_once('\'')?;
        word.push_str(part);
        // Between two pairs of quotes.
        let Some(more) = after.strip_prefix('\\') else { return Some((word, after)) };
        let c = more.chars().next().filter(|c| matches!(c, '\'' | '\\'))?;
        word.push(c);
        rest = more[1..].strip_prefix('\'')?;
    }
}

/// What to write to the input of a command without input, to have its watcher end it: TERM, and KILL after 3 s. Works where the
/// server refuses to send signals (OpenSSH does for root and for forced commands), and the end of the command is seen.
pub const END: &[u8] = b"end\n";

/// Waits (or does not), looks until the server's process is gone, then ends what belongs to the command: TERM, and KILL after 3 s.
/// Its arguments: the nonce, what identifies the command, and number and start time of the server's process if that belongs to
/// the same user, as it does under OpenSSH. Where it does not, an end of input is all there is to go by. The server's process is looked
/// at before the command begins: a watcher that comes late, on a busy host, would take a server that has gone meanwhile for
/// another user's.
fn watcher(input: Input) -> String {
    let (wait, fallback) = match input {
        Input::None => (WAIT_FOR_END, ""),
        Input::Sent => ("", "[ \"$since\" ] || exit; "),
    };
    format!(
        "trap \"\" HUP INT QUIT TERM; N=$1 P=$2 T=$3 G=$4 S=$5 server=$6 since=$7 open= within=1 before= mine=; \
         look $$ && began=$start; {wait}\
         while is_alive; do \
         if [ \"$since\" ] && serves $server $since; then sleep 1; \
         else {fallback}end TERM; sleep 3; end KILL; exit; fi; done"
    )
}

/// The name of the watcher, as `ps` shows it, and what the mark begins with.
const NAME: &str = "penstock-leash";

/// The input is closed before anything else: the server may share it with the command's output, and waits for its end.
///
/// A line that comes is [`END`]: then it does not matter whether the server lives. Nor does it after an input
/// that was open for two seconds (200 ticks) since the watcher began: that input came from a client, and
/// ended with it, though the process of many servers lives on. An input that ends at once may be all that the
/// server gives to any command.
const WAIT_FOR_END: &str = "read -r x; exec <&-; is_alive || exit; \
     now=$(look self && echo $start); [ $((now - began)) -gt 200 ] && open=1; \
     if [ \"$x\" ]; then since=; elif [ \"$open\" ] || [ -z \"$since\" ]; then since=; sleep 1; fi; ";

/// The input is the watcher's.
const WITHOUT_INPUT: &str = "exec 3<&0 </dev/null";

/// One word for any POSIX shell, and for fish: there a backslash inside quotes would take the meaning from what follows it.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut word = String::with_capacity(text.len() + 2);
    word.push('\'');
    for c in text.chars() {
        match c {
            '\'' | '\\' => word.extend(['\'', '\\', c, '\'']),
            c => word.push(c),
        }
    }
    word.push('\'');
    word
}

fn mark(nonce: &str) -> String {
    format!("{NAME}-{nonce}")
}

/// Whether the leash holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing has been seen yet.
    Unclear,
    /// The mark came: the command is started, on a leash.
    Leashed(CommandId),
    /// The mark came without an identity: the command is started, and nothing there can be proved to belong to it.
    Unproved,
    /// Something else took the command.
    None,
}

impl Hold {
    /// Whether the mark came.
    #[must_use]
    pub fn is_marked(self) -> bool {
        matches!(self, Self::Leashed(_) | Self::Unproved)
    }
}

/// Takes the mark out of a command's standard output.
#[derive(Debug)]
pub struct Mark {
    /// Its beginning. What identifies the command follows, then a line end.
    word: Vec<u8>,
    /// The start of what may be the mark.
    held: Vec<u8>,
    seen: usize,
    hold: Hold,
}

impl Mark {
    /// Looks for the mark of `nonce`.
    #[must_use]
    pub fn new(nonce: &str) -> Self {
        Self { word: mark(nonce).into_bytes(), held: Vec::new(), seen: 0, hold: Hold::Unclear }
    }

    /// Whether the leash holds, as far as is known.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// Takes what came and gives what is the command's. Start files may print before the mark: it is looked for in the first
    /// 64 KiB. At most its own length is held back.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.hold != Hold::Unclear {
            return bytes.to_vec();
        }
        self.seen += bytes.len();
        self.held.extend_from_slice(bytes);
        let mut after = 0;
        while let Some(at) = memchr::memmem::find(&self.held[after..], &self.word).map(|at| at + after) {
            after = at + self.word.len();
            let rest = &self.held[after..];
            match rest.iter().take(LONGEST_IDENTITY).position(|byte| *byte == b'\n') {
                Some(end) => {
                    let Some(hold) = held_by(&rest[..end]) else { continue };
                    self.hold = hold;
                    let mut out = std::mem::take(&mut self.held);
                    out.drain(at..=after + end);
                    return out;
                }
                None if rest.len() < LONGEST_IDENTITY && self.seen <= LOOKED_AT => {
                    let held = self.held.split_off(at);
                    return std::mem::replace(&mut self.held, held);
                }
                None => {}
            }
        }
        if self.seen > LOOKED_AT {
            return self.give_up();
        }
        let keep = (0..=(self.held.len() - after).min(self.word.len()))
            .rev()
            .find(|&length| self.held.ends_with(&self.word[..length]))
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// No mark will come: gives what was held back.
    pub fn give_up(&mut self) -> Vec<u8> {
        if self.hold == Hold::Unclear {
            self.hold = Hold::None;
        }
        std::mem::take(&mut self.held)
    }
}

/// What the rest of a mark's line says; `None` if the line is no mark.
fn held_by(rest: &[u8]) -> Option<Hold> {
    let text = std::str::from_utf8(rest).ok()?;
    if text.is_empty() {
        return Some(Hold::Unproved);
    }
    Some(CommandId::parse(text.strip_prefix(' ')?).map_or(Hold::Unproved, Hold::Leashed))
}

/// Bytes of what identifies a command: a blank before each of four numbers, of which the start time is the longest.
const LONGEST_IDENTITY: usize = 64;

const LOOKED_AT: usize = 64 * 1024;

#[cfg(test)]
mod tests;
