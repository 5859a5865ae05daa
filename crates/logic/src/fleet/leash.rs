//! What is sent to a host so that its command ends when we vanish.
//!
//! A server that loses its client closes the pipes of a command and leaves it running. So the command line starts a
//! small watcher beside the command: it waits for the end of the connection and then ends the command's process group.
//! The command takes the place of the shell that started the watcher (`exec`), so its exit status, its signals, its
//! process group and its place below the server are what they are without a leash; it is run by the user's login shell as
//! the server would do it. A mark on standard output, which [`Mark`] takes out again, says that the leash holds.
//!
//! Needs a POSIX `sh` on the far side (dash, bash, busybox). Where something else takes the command (a forced command,
//! an appliance), no mark comes.

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
    let (watcher, take) = match input {
        // `&` gives a process /dev/null as input unless it is redirected: hence the detour over 3.
        Input::None => (watcher(WAIT_FOR_END), (WITHOUT_INPUT, "<&3 3<&-", "3<&-")),
        Input::Sent => (watcher(""), (":", "</dev/null", "3<&-")),
    };
    let (before, redirect, after) = take;
    // The parentheses give the watcher away, so that the command has no child that it did not start.
    // A second login shell must not read its start files a second time: bash does if it thinks that it is the first.
    let script = format!(
        "{before}; (s=; kill -0 $PPID 2>/dev/null && s=1; \
         sh -c {watcher} penstock-leash $$ $PPID \"$s\" {redirect} >/dev/null 2>&1 &); exec {after}; \
         echo {mark}; case ${{SHELL:=/bin/sh}} in *bash) SHLVL=1; export SHLVL;; esac; exec \"$SHELL\" -c \"$1\"",
        watcher = quote(&watcher),
        mark = mark(nonce),
    );
    format!("exec sh -c {} sh {}", quote(&script), quote(command))
}

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
    let (mark, _) = script.split_once("echo penstock-leash-")?.1.split_once(';')?;
    let input = if script.starts_with(WITHOUT_INPUT) { Input::None } else { Input::Sent };
    rest.is_empty().then(|| Leashed { command, mark: format!("penstock-leash-{mark}\n"), input })
}

/// Undoes [`quote`] at the start of `text`, and gives the rest.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('\'')?;
    let mut word = String::new();
    loop {
        let (part, after) = rest.split_once('\'')?;
        word.push_str(part);
        match after.strip_prefix("\\''") {
            Some(more) => {
                word.push('\'');
                rest = more;
            }
            None => return Some((word, after)),
        }
    }
}

/// What to write to the input of a command without input, to have its watcher end it: TERM, and KILL after 3 s. Works where the
/// server refuses to send signals (OpenSSH does for root and for forced commands), and the end of the command is seen.
pub const END: &[u8] = b"end\n";

/// Waits (or does not), looks until the server's process is gone, then ends the group: TERM, and KILL after 3 s.
/// `$1` is the command, which leads its process group; `$2` is the server's process. `$3` says that it was seen to live: it belongs
/// to the same user under OpenSSH; where it does not, an end of input is all there is to go by. That is looked at before the
/// command begins: a watcher that comes late, on a busy host, would take a server that has gone meanwhile for another user's.
fn watcher(wait: &str) -> String {
    format!(
        "trap \"\" HUP INT QUIT TERM; s=$3; {wait}\
         while kill -0 $1; do \
         if [ \"$s\" ] && kill -0 $2; then sleep 1; else {fallback}kill -TERM -$1 || kill -TERM $1; sleep 3; \
         kill -KILL -$1 || kill -KILL $1; exit; fi; done",
        fallback = if wait.is_empty() { "[ \"$s\" ] || exit; " } else { "" },
    )
}

/// The input is closed before anything else: the server may share it with the command's output, and waits for its end.
///
/// A line that comes is [`END`]: then it does not matter whether the server lives.
const WAIT_FOR_END: &str =
    "read -r x; exec <&-; kill -0 $1 || exit; [ \"$x$s\" ] || sleep 1; [ \"$x\" ] && s=; ";

/// The input is the watcher's.
const WITHOUT_INPUT: &str = "exec 3<&0 </dev/null";

/// One word for any POSIX shell.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn mark(nonce: &str) -> String {
    format!("penstock-leash-{nonce}")
}

/// Whether the leash holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing has been seen yet.
    Unclear,
    /// The mark came: the command is started, on a leash.
    Leashed,
    /// Something else took the command.
    None,
}

/// Takes the mark out of a command's standard output.
#[derive(Debug)]
pub struct Mark {
    line: Vec<u8>,
    /// The start of what may be the mark.
    held: Vec<u8>,
    seen: usize,
    hold: Hold,
}

impl Mark {
    /// Looks for the mark of `nonce`.
    #[must_use]
    pub fn new(nonce: &str) -> Self {
        let line = format!("{}\n", mark(nonce)).into_bytes();
        Self { line, held: Vec::new(), seen: 0, hold: Hold::Unclear }
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
        if let Some(at) = memchr::memmem::find(&self.held, &self.line) {
            self.hold = Hold::Leashed;
            let mut out = std::mem::take(&mut self.held);
            out.drain(at..at + self.line.len());
            return out;
        }
        if self.seen > LOOKED_AT {
            return self.give_up();
        }
        let keep = (0..self.held.len().min(self.line.len()) + 1)
            .rev()
            .find(|&length| self.held.ends_with(&self.line[..length]))
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

const LOOKED_AT: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_taken_out_wherever_the_network_cuts_it() {
        let whole = b"motd\npenstock-leash-a1\nout\npenstock-leash-a1\n";
        for cut in 0..=whole.len() {
            let mut mark = Mark::new("a1");
            let mut out = mark.feed(&whole[..cut]);
            out.extend(mark.feed(&whole[cut..]));
            out.extend(mark.give_up());
            assert_eq!(out, b"motd\nout\npenstock-leash-a1\n", "cut at {cut}");
            assert_eq!(mark.hold(), Hold::Leashed);
        }
    }

    #[test]
    fn output_without_a_mark_is_given_whole_and_at_most_a_mark_is_held_back() {
        let mut mark = Mark::new("a1");
        assert_eq!(mark.feed(b"hello\npenstock-le"), b"hello\n");
        assert_eq!(mark.feed(b"t us\n"), b"penstock-let us\n");
        assert_eq!(mark.hold(), Hold::Unclear);
        assert_eq!(mark.feed(b"penstock"), b"");
        assert_eq!(mark.give_up(), b"penstock");
        assert_eq!(mark.hold(), Hold::None);
    }

    #[test]
    fn flood_without_a_mark_ends_the_search() {
        let mut mark = Mark::new("a1");
        let flood = vec![b'x'; 65 * 1024];
        assert_eq!(mark.feed(&flood).len(), flood.len());
        assert_eq!(mark.hold(), Hold::None);
    }

    #[test]
    fn what_was_wrapped_is_taken_apart_again_and_nothing_else_is() {
        for command in ["true", "echo 'it is' \"$HOME\" \\''", ""] {
            for input in [Input::None, Input::Sent] {
                let leashed = unwrap(&wrap(command, input, "a1")).unwrap();
                assert_eq!(
                    (leashed.command.as_str(), leashed.mark.as_str()),
                    (command, "penstock-leash-a1\n")
                );
            }
        }
        assert_eq!(unwrap("exec sh -c 'echo hi' sh 'x'"), None);
    }

    #[test]
    fn quoted_text_is_one_word_whatever_it_holds() {
        assert_eq!(quote("it's $HOME"), r"'it'\''s $HOME'");
    }
}
