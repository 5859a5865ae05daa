//! Output format of mpssh-py 1.2 for `penstock run --mpssh`, for scripts that read the output of mpssh.
//!
//! Three differences: a wrapped line never splits a UTF-8 character; a line that arrives slowly is not cut at a pause;
//! on a terminal, bytes from 0x80 are shown only as harmless text.

use super::ending::Ending;
use super::line::whole_characters;
use super::nodeset;
use super::openssh::{self, Unstarted};
use super::verdict::{groups, title};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `-e`: report of exit status 0.
    pub zero: Reported,
    /// Report of exit statuses 1 to 254; `-E` turns it off. 255 and signals are always reported.
    pub other: Reported,
    /// Set by `-b` and `-B`.
    pub unprintable: Unprintable,
    /// `-l`: limit in bytes above which a line is wrapped.
    pub longest: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    Yes,
    No,
}

/// Treatment of the bytes 00 to 08, 0B to 1F (except line ends), and 7F.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unprintable {
    /// The bytes are omitted, and a line reports their number.
    Counted,
    /// `-B`: the bytes are omitted.
    LeftOut,
    /// `-b`: the bytes are printed.
    Printed,
}

/// Separator between host and text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// `->`, green: standard output of the host.
    Output,
    /// `=>`, red: standard error of the host.
    Error,
    /// `=:` in green.
    Success,
    /// `=:` in red.
    Failure,
}

impl Sign {
    #[must_use]
    pub fn coloured(self) -> &'static str {
        match self {
            Self::Output => "\x1b[1;32m->\x1b[0;39m",
            Self::Error => "\x1b[1;31m=>\x1b[0;39m",
            Self::Success => "\x1b[1;32m=:\x1b[0;39m",
            Self::Failure => "\x1b[1;31m=:\x1b[0;39m",
        }
    }

    #[must_use]
    pub fn plain(self) -> &'static str {
        match self {
            Self::Output => "->",
            Self::Error => "=>",
            Self::Success | Self::Failure => "=:",
        }
    }
}

/// Splits one output stream of one host into lines.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// Start of a line whose end has not arrived; at most `Settings::longest` plus one step of [`STEP`] bytes.
    pending: Vec<u8>,
    /// True if the last read ended with a carriage return: a following line feed belongs to the same line end.
    returned: bool,
    left_out: usize,
}

impl Lines {
    /// Adds received bytes, and calls `each` for every line and for every piece of a line that is too long.
    pub fn push(&mut self, settings: &Settings, bytes: &[u8], each: &mut dyn FnMut(&[u8])) {
        let mut rest = bytes;
        if !rest.is_empty() && std::mem::take(&mut self.returned) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            self.extend(settings, &rest[..end], each);
            self.end(settings, each);
            let is_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_return {
                self.returned = rest.is_empty();
                rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            }
        }
        self.extend(settings, rest, each);
    }

    /// Ends the stream, and delivers the last line.
    pub fn finish(&mut self, settings: &Settings, each: &mut dyn FnMut(&[u8])) {
        if !self.pending.is_empty() {
            self.end(settings, each);
        }
    }

    /// Returns the number of omitted bytes since the last call.
    pub fn left_out(&mut self) -> usize {
        std::mem::take(&mut self.left_out)
    }

    /// True if no text and no count is pending.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.returned && self.left_out == 0
    }

    fn extend(&mut self, settings: &Settings, bytes: &[u8], each: &mut dyn FnMut(&[u8])) {
        // Steps limit the buffer, whatever the size of a read.
        for step in bytes.chunks(STEP) {
            self.pending.extend_from_slice(step);
            self.wrap(settings, each);
        }
    }

    fn wrap(&mut self, settings: &Settings, each: &mut dyn FnMut(&[u8])) {
        let longest = settings.longest.clamp(1, LONGEST);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while rest.len() > longest {
            let mut end = whole_characters(&rest[..longest]);
            if longest < LONGEST_CHARACTER && std::str::from_utf8(&rest[..end]).is_err() {
                // A piece has room for at least one character, even if the limit is shorter.
                end = character(rest);
                if end == rest.len() {
                    break;
                }
            }
            self.give(settings, &rest[..end], each);
            rest = &rest[end..];
        }
        let given = pending.len() - rest.len();
        self.pending = pending;
        self.pending.drain(..given);
    }

    fn end(&mut self, settings: &Settings, each: &mut dyn FnMut(&[u8])) {
        let mut pending = std::mem::take(&mut self.pending);
        self.give(settings, &pending, each);
        pending.clear();
        self.pending = pending;
    }

    /// Delivers a piece without omitted bytes. The wrapping comes first, as in mpssh.
    fn give(&mut self, settings: &Settings, piece: &[u8], each: &mut dyn FnMut(&[u8])) {
        if settings.unprintable == Unprintable::Printed || piece.iter().all(|byte| is_printed(*byte)) {
            return each(piece);
        }
        let shown: Vec<u8> = piece.iter().copied().filter(|byte| is_printed(*byte)).collect();
        self.left_out += piece.len() - shown.len();
        each(&shown);
    }
}

fn character(bytes: &[u8]) -> usize {
    let needed = match bytes.first() {
        Some(0xc0..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf7) => 4,
        _ => 1,
    };
    let following = bytes.iter().skip(1).take(needed - 1).take_while(|byte| (0x80..=0xbf).contains(*byte));
    1 + following.count()
}

fn is_printed(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

#[must_use]
pub fn left_out(count: usize) -> String {
    format!("{count} non-printable characters were ignored")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The command or `ssh` exited with this status. 255 means that OpenSSH failed, or that a signal ended the command.
    Exited(u32),
    /// This signal ended the SSH client.
    Killed(i32),
    /// The SSH client could not be started.
    Unstarted(Unstarted),
}

impl End {
    /// Converts `ending` to the terms of mpssh. The text holds details that mpssh has no term for.
    #[must_use]
    pub fn of(ending: &Ending) -> (Option<String>, Self) {
        match ending {
            Ending::Exited(status) => (None, Self::Exited(*status)),
            Ending::Signalled { signal, .. } => {
                (Some(format!("the command was ended by signal {signal}")), Self::Exited(255))
            }
            Ending::Failed(failure) => {
                if let Some(unstarted) = Unstarted::of(failure) {
                    (None, Self::Unstarted(unstarted))
                } else if let Some(signal) = openssh::signal_of_substitute(failure) {
                    (None, Self::Killed(signal))
                } else if openssh::is_unclear_255(failure) {
                    (None, Self::Exited(255))
                } else {
                    (Some(format!("{}: {}", title(ending), failure.detail)), Self::Exited(255))
                }
            }
        }
    }

    /// Line that mpssh prints about the result, if any.
    #[must_use]
    pub fn line(&self, settings: &Settings) -> Option<(Sign, String)> {
        let (reported, sign, text) = match self {
            Self::Exited(0) => (settings.zero, Sign::Success, "SSH exit code 0".to_owned()),
            Self::Exited(255) => {
                (Reported::Yes, Sign::Failure, "SSH exit code 255 (possible SSH failure)".to_owned())
            }
            Self::Exited(status) => (settings.other, Sign::Failure, format!("SSH exit code {status}")),
            Self::Killed(signal) => {
                (Reported::Yes, Sign::Failure, format!("SSH killed with signal {signal}"))
            }
            Self::Unstarted(Unstarted { program, errno, words }) => {
                (Reported::Yes, Sign::Failure, format!("exec({program}) error({errno}): {words}"))
            }
        };
        (reported == Reported::Yes).then_some((sign, text))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Hosts whose command exited with 0.
    pub ok: usize,
    pub not_ok: usize,
    /// Hosts where SSH failed, by the rules of mpssh.
    pub ssh_failed: usize,
}

impl Tally {
    #[must_use]
    pub fn of<'a>(endings: impl IntoIterator<Item = &'a Ending>) -> Self {
        let mut tally = Self::default();
        for ending in endings {
            match End::of(ending).1 {
                End::Exited(0) => tally.ok += 1,
                End::Exited(255) | End::Killed(_) | End::Unstarted(_) => tally.ssh_failed += 1,
                End::Exited(_) => tally.not_ok += 1,
            }
        }
        tally
    }

    /// Last lines of the output; `-H` omits them.
    #[must_use]
    pub fn footer(self) -> String {
        let Self { ok, not_ok, ssh_failed } = self;
        let hosts = ok + not_ok + ssh_failed;
        format!("\n  Done. {hosts} hosts processed (ok/non-ok/ssh-failed = {ok}/{not_ok}/{ssh_failed}).\n")
    }
}

/// Returns advice about failed hosts, for standard error: mpssh has no format for advice, and scripts read its standard
/// output. Empty if there is no advice.
#[must_use]
pub fn advice<'a>(endings: impl IntoIterator<Item = (&'a str, &'a Ending)>) -> String {
    let mut text = String::new();
    for group in groups(endings) {
        let hosts = nodeset::fold(group.hosts.iter().map(String::as_str));
        let mut told: Vec<&str> = Vec::new();
        for advice in group.advice.iter().chain(group.others.iter().filter_map(|cause| cause.advice.as_ref()))
        {
            if told.is_empty() {
                text.push_str(&format!("{} ({}): {hosts}\n", group.title, group.hosts.len()));
            }
            if !told.contains(&advice.as_str()) {
                text.push_str(&format!("  {advice}\n"));
                told.push(advice);
            }
        }
    }
    text
}

#[derive(Debug, Clone, Copy)]
pub struct Header<'a> {
    pub hosts: usize,
    pub command: &'a str,
    pub user: &'a str,
    pub sessions: usize,
    /// With `-v`: the program that replaces `ssh`, and its options.
    pub verbose: Option<(&'a str, &'a [String])>,
}

impl Header<'_> {
    /// First lines of the output; `-H` omits them.
    #[must_use]
    pub fn text(&self) -> String {
        let verbose = self.verbose.map_or_else(String::new, |(program, options)| {
            let options: Vec<String> = options.iter().map(|option| quoted(&format!("-{option}"))).collect();
            format!("  [*] SSH binary : {program}\n  [*] SSH options: [{}]\n", options.join(", "))
        });
        format!(
            "MPSSH.py - Mass parallel SSH in Python (Version {VERSION})\n\
             (c) 2013 Ivan Zahariev <famzah>\n\n  \
             [*] read ({}) hosts from the list\n  \
             [*] executing \"{}\" as user \"{}\"\n\
             {verbose}  [*] spawning {} parallel SSH sessions\n\n",
            self.hosts, self.command, self.user, self.sessions,
        )
    }
}

/// Quotes a text as Python does in a list.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::from(quote);
    for sign in text.chars() {
        match sign {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            sign if sign == quote => shown.extend(['\\', sign]),
            sign => shown.push(sign),
        }
    }
    shown.push(quote);
    shown
}

/// Version of mpssh-py that the output imitates.
pub const VERSION: &str = "1.2";
/// Hard limit of a line in bytes, whatever `-l` says.
const LONGEST: usize = 1024 * 1024;
const LONGEST_CHARACTER: usize = 4;
const STEP: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(longest: usize, unprintable: Unprintable) -> Settings {
        Settings { zero: Reported::No, other: Reported::Yes, unprintable, longest }
    }

    /// Joins the lines, each followed by `|`, and returns the number of omitted bytes.
    fn lines(settings: &Settings, reads: &[&[u8]]) -> (String, usize) {
        let mut shown = Vec::new();
        let mut lines = Lines::default();
        let mut each = |line: &[u8]| {
            shown.extend_from_slice(line);
            shown.push(b'|');
        };
        reads.iter().for_each(|read| lines.push(settings, read, &mut each));
        lines.finish(settings, &mut each);
        (String::from_utf8_lossy(&shown).into_owned(), lines.left_out())
    }

    #[test]
    fn lines_end_where_mpssh_ends_them_and_lose_what_it_leaves_out() {
        let usual = settings(80, Unprintable::Counted);
        for (bytes, shown, left_out) in [
            (&b"a\rb\r\nc\x0bd\x0ce\nf\n\r\n\n x\t y \n"[..], "a|b|cde|f||| x\t y |", 2),
            (b"\n\nlala\n\n\n", "||lala|||", 0),
            (b"\n\nlala", "||lala|", 0),
            (b"", "", 0),
            (b"\x01", "|", 1),
            (b"\x1b[31mred\x1b[0m\n", "[31mred[0m|", 2),
            (b"test\x01\r\n\x02\x7fm\x7fest\n", "test|mest|", 4),
        ] {
            assert_eq!(lines(&usual, &[bytes]), (shown.to_owned(), left_out), "{bytes:?}");
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            assert_eq!(lines(&usual, &single), (shown.to_owned(), left_out), "{bytes:?} byte by byte");
        }
        assert_eq!(
            lines(&settings(80, Unprintable::Printed), &[b"a\x01\r\x1b\n"]),
            ("a\x01|\x1b|".to_owned(), 0)
        );
    }

    #[test]
    fn long_lines_are_wrapped_between_characters() {
        for (longest, text, shown) in [
            (5, "abcdefghijk\nabcde\nabcdefghij\n", "abcde|fghij|k|abcde|abcde|fghij|"),
            (5, "ääääx\n", "ää|ääx|"),
            (5, "abc\u{1}\u{2}defghijk\n\u{1}\u{1}\u{1}\u{1}\u{1}x", "abc|defgh|ijk||x|"),
            (1, "aä€😀\n", "a|ä|€|😀|"),
            (2, "ä€ä", "ä|€|ä|"),
            (3, "😀😀a", "😀|😀|a|"),
        ] {
            let settings = settings(longest, Unprintable::Counted);
            assert_eq!(lines(&settings, &[text.as_bytes()]).0, shown);
            let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(lines(&settings, &single).0, shown, "byte by byte");
        }
    }

    #[test]
    fn line_without_an_end_is_not_kept_without_a_bound() {
        let mut lines = Lines::default();
        let mut given = 0;
        let settings = settings(usize::MAX, Unprintable::Counted);
        for _ in 0..100 {
            lines.push(&settings, &[b'x'; 100_000], &mut |line| given += line.len());
            assert!(lines.pending.len() <= LONGEST);
        }
        assert_eq!(given + lines.pending.len(), 10_000_000);
    }

    #[test]
    fn options_are_shown_as_a_list_of_python() {
        assert_eq!(quoted("-o A=1"), "'-o A=1'");
        assert_eq!(quoted("it's"), "\"it's\"");
        assert_eq!(quoted("it's \"\\"), "'it\\'s \"\\\\'");
    }

    proptest::proptest! {
        #[test]
        fn wrapping_loses_nothing_and_cuts_no_character(
            text in "[a-cä€😀]{1,40}",
            longest in 1_usize..9,
            cut in 0_usize..40,
        ) {
            let (before, after) = text.as_bytes().split_at(cut.min(text.len()));
            let (shown, _) = lines(&settings(longest, Unprintable::Counted), &[before, after]);
            proptest::prop_assert_eq!(shown.replace('|', ""), text);
            proptest::prop_assert!(shown.split('|').all(|line| line.len() <= longest || line.chars().count() == 1));
        }

        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60), longest in 1_usize..9) {
            let (_, left_out) = lines(&settings(longest, Unprintable::Counted), &[&bytes]);
            proptest::prop_assert!(left_out <= bytes.len());
        }
    }
}
