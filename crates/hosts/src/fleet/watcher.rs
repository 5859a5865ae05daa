//! Command line that makes a remote command end when the connection ends.
//!
//! When the client is gone, an SSH server closes the pipes of a command but leaves the command running. So the command
//! line starts a small watcher process next to the command. The watcher waits for the end of the connection and then
//! ends the process group of the command. The command replaces (`exec`) the shell that started the watcher, so exit
//! status, signals, process group and parent process are the same as without a watcher; the login shell of the user
//! runs the command, as with the server alone. The environment has one more variable, `PENSTOCK_WATCHER`, with a nonce.
//!
//! A mark on standard output, which [`Mark`] removes, reports that the watcher runs, and identifies the command:
//! process number, start time, process group and session. A signal goes only to processes that are proved to belong to
//! the command by the four numbers and the nonce, at the moment of the signal (`watcher/proof.sh`). The same holds for
//! [`signal`], which uses a second channel. Without proof nothing is signalled.
//!
//! The host needs a POSIX `sh` and `/proc`. With a forced command or on an appliance, no mark comes. Without `/proc`,
//! `tr` or `grep` the mark has no identity: only the server can end the command, if it accepts signal requests (RFC
//! 4254 section 6.9).

use text::shell::quote;

/// Environment variable that holds the nonce of the command.
pub const VARIABLE: &str = "PENSTOCK_WATCHER";

/// Method by which the watcher detects the end of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The command has no input. The watcher reads the input, which must stay open, until the connection ends.
    None,
    /// The command reads the input, so the watcher checks each second if the server process of the connection exists.
    Sent,
}

/// Command line to send for `command`. `nonce` consists of letters and digits.
#[must_use]
pub fn wrap(command: &str, input: Input, nonce: &str) -> String {
    let (take, redirect, after) = match input {
        // A background process (`&`) has /dev/null as input unless redirected, so descriptor 3 keeps the input.
        Input::None => (WITHOUT_INPUT, "<&3 3<&-", "3<&-"),
        Input::Sent => (":", "</dev/null", "3<&-"),
    };
    // A subshell finds the identity of the command, and positional parameters keep it: no environment variable of the
    // command changes. The second pair of parentheses detaches the watcher, so that the command has no extra child.
    // The second login shell must not read its start files again: bash would, as a shell that an SSH server started.
    let script = format!(
        "{take}; set -- \"$1\" \"$2\" \"$3\" $(exec 2>/dev/null; eval \"$2\"; introduce); \
         {VARIABLE}={nonce}; export {VARIABLE}; \
         [ $# -gt 3 ] && (sh -c \"$2$3\" {NAME} ${VARIABLE} $4 $5 $6 $7 $8 $9 {redirect} >/dev/null 2>&1 &); \
         exec {after}; echo {mark} $4 $5 $6 $7; \
         case ${{SHELL:=/bin/sh}} in *bash) exec \"$SHELL\" --norc -c \"$1\";; esac; exec \"$SHELL\" -c \"$1\"",
        mark = mark(nonce),
    );
    let watcher = quote(&watcher(input));
    format!("exec sh -c {} sh {} {} {watcher}", quote(&script), quote(command), quote(&proof()))
}

/// Identity of a command on its host until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandId {
    pub process: u32,
    /// Start time in clock ticks after the boot (field 22 of `/proc/PID/stat`, proc_pid_stat(5)).
    pub start: u64,
    /// Process group; 0 if the group has no number in the PID namespace of the command, as in a container.
    pub group: u32,
    /// Session; 0 as for the process group.
    pub session: u32,
}

impl CommandId {
    /// Parses the four numbers of a mark. A server can send any text: `None` for numbers that no command can have.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (process, start, group, session) = (number()?, number()?, number()?, number()?);
        let id = |number: u64| u32::try_from(number).ok().filter(|id| *id <= i32::MAX.cast_unsigned());
        let started = Self { process: id(process)?, start, group: id(group)?, session: id(session)? };
        (words.next().is_none() && started.process > 1 && start > 0).then_some(started)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSignal {
    Term,
    Kill,
}

impl EndSignal {
    /// Name of the signal in the SSH protocol and kill(1).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Kill => "KILL",
        }
    }
}

/// Command line for a second channel, which signals the processes that are proved to belong to a command. The exit
/// status is not 0 if nothing was proved and nothing signalled. 3 s after `TERM`, proved processes that remain get
/// `KILL`, as from the watcher: the command or the client may be gone by that time.
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

/// `watcher/proof.sh` on one line, without comments, with a blank at the end: shell functions that prove which
/// processes belong to a command, and signal those processes.
#[must_use]
pub fn proof() -> String {
    let lines = PROOF.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| [line, " "]).collect()
}

const PROOF: &str = include_str!("watcher/proof.sh");

/// A command with a watcher, as a lab host receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    pub command: String,
    /// Line that reports that the watcher runs.
    pub mark: String,
    pub input: Input,
}

/// Parses the result of [`wrap`]; `None` for other text.
#[must_use]
pub fn unwrap(line: &str) -> Option<Watched> {
    let (script, rest) = unquote(line.strip_prefix("exec sh -c ")?)?;
    let (command, rest) = unquote(rest.strip_prefix(" sh ")?)?;
    let (proof, rest) = unquote(rest.strip_prefix(' ')?)?;
    let (_, rest) = unquote(rest.strip_prefix(' ')?)?;
    let (nonce, _) = script.split_once("echo penstock-watcher-")?.1.split_once(' ')?;
    let input = if script.starts_with(WITHOUT_INPUT) { Input::None } else { Input::Sent };
    let mark = format!("{} {IN_PROCESS} 1 {IN_PROCESS} {IN_PROCESS}\n", mark(nonce));
    (rest.is_empty() && proof == self::proof()).then_some(Watched { command, mark, input })
}

/// Process number that Linux gives to no process (PID_MAX_LIMIT is 4,194,304), for commands of lab hosts.
const IN_PROCESS: u32 = 4_194_305;

/// Reverses [`quote`] at the start of `text`, and returns the word and the rest.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('\'')?;
    let mut word = String::new();
    loop {
        let (part, after) = rest.split_once('\'')?;
        word.push_str(part);
        // An escaped character between two quoted parts.
        let Some(more) = after.strip_prefix('\\') else { return Some((word, after)) };
        let c = more.chars().next().filter(|c| matches!(c, '\'' | '\\'))?;
        word.push(c);
        rest = more[1..].strip_prefix('\'')?;
    }
}

/// Text for the input of a command without input, which makes the watcher end the command: TERM, and KILL after 3 s.
/// Works if the server refuses signal requests (OpenSSH does for root and for forced commands), and reports the end of
/// the command.
pub const END: &[u8] = b"end\n";

/// Shell script of the watcher. It waits until the server process is gone, then ends the processes of the command:
/// TERM, and KILL after 3 s. Arguments: nonce, identity of the command, and number and start time of the server process
/// if the same user owns it, as under OpenSSH. Otherwise only the end of the input counts. The server process is read
/// before the command begins: on a busy host a late watcher could take a server that has ended for one of another user.
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

/// Name of the watcher in `ps`, and start of the mark.
const NAME: &str = "penstock-watcher";

/// Reads and then closes the input first: the server may use one socket for input and output of the command, and wait
/// for its end.
///
/// A line that arrives is [`END`]: the state of the server does not matter then. The same holds for an input that
/// stayed open for two seconds (200 ticks) after the watcher began: a client held the input open and closed it,
/// although many servers keep their process. An input that ends at once may be what the server gives to every command.
const WAIT_FOR_END: &str = "read -r x; exec <&-; is_alive || exit; \
     now=$(look self && echo $start); [ $((now - began)) -gt 200 ] && open=1; \
     if [ \"$x\" ]; then since=; elif [ \"$open\" ] || [ -z \"$since\" ]; then since=; sleep 1; fi; ";

/// Moves the input to descriptor 3, for the watcher.
const WITHOUT_INPUT: &str = "exec 3<&0 </dev/null";

fn mark(nonce: &str) -> String {
    format!("{NAME}-{nonce}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// No mark and nothing else was seen yet.
    Unclear,
    /// The mark came: the command runs with a watcher.
    Watched(CommandId),
    /// The mark came without an identity: the command runs, and no process can be proved to belong to it.
    Unproved,
    /// No mark comes: a forced command or an appliance took the command line.
    None,
}

impl Hold {
    #[must_use]
    pub fn is_marked(self) -> bool {
        matches!(self, Self::Watched(_) | Self::Unproved)
    }
}

/// Removes the mark from the standard output of a command.
#[derive(Debug)]
pub struct Mark {
    /// Start of the mark. The identity of the command and a line end follow.
    word: Vec<u8>,
    /// Bytes that may be the start of the mark.
    held: Vec<u8>,
    seen: usize,
    hold: Hold,
}

impl Mark {
    #[must_use]
    pub fn new(nonce: &str) -> Self {
        Self { word: mark(nonce).into_bytes(), held: Vec::new(), seen: 0, hold: Hold::Unclear }
    }

    /// Result of the search so far.
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.hold
    }

    /// Adds output and returns the output of the command. Start files of the shell can print before the mark, so the
    /// first 64 KiB are searched. At most the length of a mark is held back.
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

    /// Ends the search and returns the bytes that were held back.
    pub fn give_up(&mut self) -> Vec<u8> {
        if self.hold == Hold::Unclear {
            self.hold = Hold::None;
        }
        std::mem::take(&mut self.held)
    }
}

/// Parses the rest of the line of a mark; `None` if the line is no mark.
fn held_by(rest: &[u8]) -> Option<Hold> {
    let text = std::str::from_utf8(rest).ok()?;
    if text.is_empty() {
        return Some(Hold::Unproved);
    }
    Some(CommandId::parse(text.strip_prefix(' ')?).map_or(Hold::Unproved, Hold::Watched))
}

/// Maximum length, in bytes, of the text that identifies a command: process id, start time, process group and session,
/// with a blank before each.
const LONGEST_IDENTITY: usize = 64;

const LOOKED_AT: usize = 64 * 1024;

#[cfg(test)]
mod tests;
