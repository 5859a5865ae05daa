//! Undo list of a tunnel on disk: a line is written before each step, so that a later process can undo the steps after
//! a crash or a power cut.
//!
//! A line consists of words (blanks and the like as `\040`) and a checksum. A last line without a line end was not
//! fully written, so its step had not begun. Any other invalid line is damage.

use std::fmt;
use std::path::{Path, PathBuf};

use super::mounts::{MountEntry, escape};

/// Step that must be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Listeners; these sockets remain in the file system.
    Forwards { sockets: Vec<PathBuf> },
    /// Mount command, with the commands to undo it.
    Mount {
        point: PathBuf,
        unmount: Vec<String>,
        lazy: Vec<String>,
        /// Words of the mount command; empty in a list of an earlier version.
        command: Vec<String>,
    },
    /// The job: its processes may still run.
    Job,
}

impl Entry {
    fn word(&self) -> &'static str {
        match self {
            Self::Forwards { .. } => "forwards",
            Self::Mount { .. } => "mount",
            Self::Job => "job",
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job => f.write_str("its command"),
            Self::Mount { point, .. } => write!(f, "its mount on {}", point.display()),
            Self::Forwards { sockets } if sockets.is_empty() => f.write_str("its forwards"),
            Self::Forwards { sockets } => {
                let sockets: Vec<_> = sockets.iter().map(|path| path.display().to_string()).collect();
                write!(f, "its forwards (socket {})", sockets.join(", "))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Forwards,
    Mount,
    Job,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Forwards => "forwards",
            Self::Mount => "mount",
            Self::Job => "job",
        }
    }
}

/// First line of the list. `run` is in the environment of each process of the run. `boot` is the boot id of the machine
/// (`/proc/sys/kernel/random/boot_id`), if readable: mounts and processes do not survive a reboot. `runtime` is the
/// directory of the sockets of the run.
#[must_use]
pub fn first_line(tunnel: &str, run: &str, boot: Option<&str>, runtime: &Path) -> String {
    sealed([MAGIC, "1", tunnel, run, boot.unwrap_or(UNKNOWN_BOOT), &escape(runtime)].join(" "))
}

#[must_use]
pub fn begun(entry: &Entry) -> String {
    let mut words = vec!["+".to_owned(), entry.word().to_owned()];
    match entry {
        Entry::Forwards { sockets } => words.extend(sockets.iter().map(|path| escape(path))),
        Entry::Mount { point, unmount, lazy, command } => {
            words.push(escape(point));
            words.push(format!("{},{}", unmount.len(), lazy.len()));
            let all = unmount.iter().chain(lazy).chain(command);
            words.extend(all.map(|word| escape(Path::new(word))));
        }
        Entry::Job => {}
    }
    // The words are already escaped.
    sealed(words.join(" "))
}

/// Line that identifies the mount of the run, so that no other mount is unmounted.
#[must_use]
pub fn mounted(entry: &MountEntry) -> String {
    line(&["=", "mounted", &entry.id.to_string(), &entry.kind, &entry.source])
}

/// Line that marks a step as undone.
#[must_use]
pub fn undone(kind: Kind) -> String {
    line(&["-", kind.word()])
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Name of the tunnel; `None` if the first line is damaged.
    pub tunnel: Option<String>,
    /// Id of the run; `None` if the first line is damaged.
    pub run: Option<String>,
    /// Directory of the sockets; `None` if the first line is damaged or from an earlier version.
    pub runtime: Option<PathBuf>,
    /// Boot id of the machine; `None` if the first line is damaged.
    pub boot: Option<String>,
    /// Steps to undo, in the order in which to undo them.
    pub left: Vec<Entry>,
    /// Mount of the run, if the run saw the mount.
    pub mounted: Option<MountEntry>,
    /// Numbers of damaged lines.
    pub damaged: Vec<usize>,
}

impl Record {
    /// Parses a list as far as it is intact.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut record = Self::default();
        let whole = whole_lines(bytes);
        for (at, line) in bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let fits = opened(line).is_some_and(|words| record.enter(at, &words));
            if !fits {
                record.damaged.push(at + 1);
            }
        }
        // A list above the limit may have lost lines. A list without a line end must be the start of a first line.
        if bytes.len() > LONGEST || (whole == 0 && !is_beginning(bytes)) {
            record.damaged.push(1 + bytes[..whole].iter().filter(|byte| **byte == b'\n').count());
        }
        record.left.reverse();
        record
    }

    /// Steps to undo with the current boot id `boot`: after a reboot only sockets remain. If one of the boot ids is
    /// unknown, every step counts.
    #[must_use]
    pub fn left_on(&self, boot: Option<&str>) -> Vec<Entry> {
        let then = self.boot.as_deref().filter(|then| *then != UNKNOWN_BOOT);
        let rebooted = then.zip(boot).is_some_and(|(then, now)| then != now);
        let stays = |entry: &&Entry| !rebooted || matches!(entry, Entry::Forwards { .. });
        self.left.iter().filter(stays).cloned().collect()
    }

    /// Adds the words of one line. Returns false for an invalid line.
    fn enter(&mut self, at: usize, words: &[String]) -> bool {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            [MAGIC, "1", tunnel, run, boot, runtime @ ..] if at == 0 && is_run(run) && runtime.len() <= 1 => {
                self.tunnel = Some((*tunnel).to_owned());
                self.run = Some((*run).to_owned());
                self.boot = Some((*boot).to_owned());
                self.runtime = runtime.first().map(PathBuf::from).filter(|path| path.is_absolute());
            }
            // Without a first line the run is unknown.
            _ if at == 0 => return false,
            ["+", "forwards", sockets @ ..] => {
                let sockets = sockets.iter().map(PathBuf::from).collect();
                self.left.push(Entry::Forwards { sockets });
            }
            ["+", "mount", point, counts, commands @ ..] => {
                let Some([unmount, lazy, command]) = commands_of(counts, commands) else { return false };
                let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
                self.left.push(Entry::Mount {
                    point: PathBuf::from(point),
                    unmount: owned(unmount),
                    lazy: owned(lazy),
                    command: owned(command),
                });
            }
            ["+", "job"] => self.left.push(Entry::Job),
            ["=", "mounted", id, kind, source] => {
                let Ok(id) = id.parse() else { return false };
                let point = self.left.iter().rev().find_map(|entry| match entry {
                    Entry::Mount { point, .. } => Some(point.clone()),
                    _ => None,
                });
                let (kind, source) = ((*kind).to_owned(), (*source).to_owned());
                self.mounted = Some(MountEntry { id, point: point.unwrap_or_default(), kind, source });
            }
            ["-", kind] => {
                let Some(at) = self.left.iter().rposition(|entry| entry.word() == *kind) else {
                    return false;
                };
                if let Entry::Mount { .. } = self.left.remove(at) {
                    self.mounted = None;
                }
            }
            _ => return false,
        }
        true
    }
}

const MAGIC: &str = "penstock-undo";
const UNKNOWN_BOOT: &str = "unknown";

/// Limit of a list in bytes. A list has a few hundred bytes; a longer one is damaged.
pub const LONGEST: usize = 1 << 20;

/// Splits the commands of a mount by `counts`, the word counts of the first two commands. Earlier versions wrote two
/// commands and the count of the first.
fn commands_of<'a>(counts: &str, words: &'a [&'a str]) -> Option<[&'a [&'a str]; 3]> {
    let (first, second) =
        counts.split_once(',').map_or((counts, None), |(first, second)| (first, Some(second)));
    let (unmount, rest) = words.split_at_checked(first.parse().ok()?)?;
    let (lazy, command) = match second {
        Some(second) => rest.split_at_checked(second.parse().ok()?)?,
        None => (rest, &rest[..0]),
    };
    Some([unmount, lazy, command])
}

/// Length of the complete lines.
#[must_use]
pub fn whole_lines(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

/// True if `bytes` can be the beginning of an incomplete first line.
fn is_beginning(bytes: &[u8]) -> bool {
    bytes.iter().zip(MAGIC.as_bytes()).all(|(is, wanted)| is == wanted)
}

/// True for a valid id of a run. The id becomes the name of a directory, which is removed later.
fn is_run(word: &str) -> bool {
    (1..=32).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn line(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| escape(Path::new(word))).collect();
    sealed(words.join(" "))
}

fn sealed(text: String) -> String {
    format!("{text} ~{:08x}\n", checksum(text.as_bytes()))
}

/// Words of a line with a valid checksum.
fn opened(line: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (text, sum) = text.rsplit_once(" ~")?;
    (sum.len() == 8 && u32::from_str_radix(sum, 16).ok()? == checksum(text.as_bytes())).then_some(())?;
    text.split(' ').map(unescape).collect()
}

fn unescape(word: &str) -> Option<String> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'\\' {
            out.push(*first);
            rest = tail;
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..3)?).ok()?;
        out.push(u8::from_str_radix(digits, 8).ok()?);
        rest = &tail[3..];
    }
    String::from_utf8(out).ok()
}

/// FNV-1a. The checksum detects damage, not forgery: only the owner can write the file.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount() -> Entry {
        Entry::Mount {
            point: "/mnt/my nas".into(),
            unmount: vec!["umount".into(), "/mnt/my nas".into()],
            lazy: vec!["umount".into(), "-l".into(), String::new()],
            command: vec!["mount".into(), "127.0.0.1:/a b".into(), "/mnt/my nas".into()],
        }
    }

    fn forwards() -> Entry {
        Entry::Forwards { sockets: vec!["/run/a b.sock".into(), "/run/\u{e4}\n.sock".into()] }
    }

    fn full() -> String {
        let seen = MountEntry {
            id: 44,
            point: "/mnt/my nas".into(),
            kind: "nfs4".into(),
            source: "127.0.0.1:/a b".into(),
        };
        [
            first_line("nas", "r1", Some("b1"), Path::new("/run/a b")),
            begun(&forwards()),
            begun(&mount()),
            mounted(&seen),
            begun(&Entry::Job),
        ]
        .concat()
    }

    #[test]
    fn what_was_begun_last_is_undone_first() {
        let record = Record::parse(full().as_bytes());
        assert_eq!(record.left, [Entry::Job, mount(), forwards()]);
        assert_eq!(record.mounted.as_ref().map(|it| it.source.as_str()), Some("127.0.0.1:/a b"));
        assert_eq!((record.run.as_deref(), record.damaged.len()), (Some("r1"), 0));
        assert_eq!((record.tunnel.as_deref(), record.runtime), (Some("nas"), Some("/run/a b".into())));
        let undone = full() + &undone(Kind::Job) + &undone(Kind::Mount);
        let record = Record::parse(undone.as_bytes());
        assert_eq!((record.left, record.mounted), (vec![forwards()], None));
    }

    #[test]
    fn a_list_cut_anywhere_holds_every_step_that_had_begun() {
        let text = full();
        for cut in 0..text.len() {
            let record = Record::parse(&text.as_bytes()[..cut]);
            let whole = text[..cut].lines().count() - usize::from(!text[..cut].ends_with('\n') && cut > 0);
            let begun = text.lines().take(whole).filter(|line| line.starts_with('+')).count();
            assert_eq!((record.left.len(), record.damaged.len()), (begun, 0), "{cut}");
        }
    }

    #[test]
    fn a_damaged_line_is_named_and_the_others_count() {
        let text = full();
        for at in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 0x04;
            let record = Record::parse(&bytes);
            let line = text[..at].matches('\n').count() + 1;
            // The changed last line can look incomplete.
            assert!(record.damaged.contains(&line) || at + 1 == text.len(), "{at}: {:?}", record.damaged);
            // A changed line end joins two lines into one damaged line.
            assert!(!record.left.is_empty(), "{at}");
        }
        let garbage = Record::parse(b"\xff\xfe\n\n + job\n- job ~00000000\n");
        assert_eq!((garbage.damaged.len(), garbage.left.len()), (4, 0));
        assert_eq!(Record::parse(b""), Record::default());
    }

    #[test]
    fn a_list_that_does_not_say_whose_it_is_or_never_ends_is_damaged() {
        let text = full();
        let (first, rest) = text.split_at(text.find('\n').unwrap() + 1);
        assert_eq!(Record::parse(rest.as_bytes()).damaged, [1]);
        // The id of a run becomes the name of a directory, which is removed.
        for run in ["", "..", "../a", "/etc", "a/b"] {
            let record = Record::parse(first_line("nas", run, Some("b1"), Path::new("/run")).as_bytes());
            assert_eq!((record.run, record.damaged), (None, vec![1]), "{run:?}");
        }
        assert_eq!(Record::parse(&[0; 40]).damaged, [1]);
        assert_eq!(Record::parse(&first.as_bytes()[..5]).damaged, [0; 0]);
        // The last of many lines counts, and missing lines above the limit are detected.
        let mut long = first.to_owned();
        while long.len() + 200 < LONGEST {
            long += &(begun(&Entry::Job) + &undone(Kind::Job));
        }
        long += &begun(&mount());
        assert_eq!(Record::parse(long.as_bytes()).left, [mount()]);
        long += &begun(&Entry::Job).repeat(20);
        let cut = Record::parse(&long.as_bytes()[..=LONGEST]);
        assert_eq!((cut.damaged.len(), cut.left.last()), (1, Some(&mount())));
        // Format of earlier versions.
        let earlier = line(&[MAGIC, "1", "nas", "r1", "b1"]);
        let record = Record::parse(earlier.as_bytes());
        assert_eq!((record.run.as_deref(), record.runtime, record.damaged.len()), (Some("r1"), None, 0));
        let mount = line(&["+", "mount", "/mnt", "2", "umount", "/mnt", "umount", "-l", "/mnt"]);
        let record = Record::parse((earlier + &mount).as_bytes());
        let [Entry::Mount { unmount, lazy, command, .. }] = record.left.as_slice() else {
            panic!("{record:?}")
        };
        assert_eq!((unmount.len(), lazy.len(), command.len()), (2, 3, 0));
    }

    #[test]
    fn a_reboot_leaves_sockets_and_nothing_else() {
        let record = Record::parse(full().as_bytes());
        assert_eq!(record.left_on(Some("b2")), [forwards()]);
        assert_eq!(record.left_on(Some("b1")).len(), 3);
        // Without /proc the boot id is unknown.
        assert_eq!(record.left_on(None).len(), 3);
        let first = first_line("nas", "r1", None, Path::new("/run"));
        let record = Record::parse((first + &begun(&Entry::Job)).as_bytes());
        assert_eq!((record.left_on(Some("b1")).len(), record.damaged.len()), (1, 0));
    }
}
