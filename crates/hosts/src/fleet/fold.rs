//! Groups hosts with equal output, as `clush -b` does. Masks exclude text that always differs from the comparison: host
//! names, addresses, times, process numbers. The operator chooses the masks by name.

use super::nodeset;
use regex::{Captures, Regex, RegexBuilder};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::str::FromStr;
use text::nearest::nearest;

/// Kind of text that a comparison of outputs ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mask {
    /// Names of the host that printed the output.
    Host,
    /// IP addresses and MAC addresses.
    Ip,
    /// UUIDs, and the 32 hexadecimal digits of a machine-id.
    Uuid,
    Date,
    /// Durations: `12.5ms`, `3 days, 4:05`.
    Duration,
    /// Process numbers: `sshd[1234]`, `pid 1234`, `PID=1234`.
    Pid,
    /// All other numbers.
    Number,
}

/// Set of masks. The default is none: the operator asks for each mask.
#[derive(Debug, Clone)]
pub struct Masks {
    masks: Vec<Mask>,
    /// All masks except [`Mask::Host`] as one regular expression with a named group per mask; `None` without masks.
    pattern: Option<Regex>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{word}\" is not a mask; {}there is {}, all and none", near(word), words())]
pub struct UnknownMask {
    pub word: String,
}

/// Names by which the output of a host may mention the host.
#[derive(Debug, Clone)]
pub struct Names {
    pattern: Option<Regex>,
}

/// SHA-256 of the masked output of a host. Hosts with equal digests belong to one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Computes the [`Digest`] of the output of one host line by line, without keeping the output.
#[derive(Debug, Clone, Default)]
pub struct Digester(Sha256);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub digest: Digest,
    /// Host names in the order of clush.
    pub hosts: Vec<String>,
    pub folded: String,
}

impl Mask {
    const ALL: [Self; 7] =
        [Self::Host, Self::Ip, Self::Uuid, Self::Date, Self::Duration, Self::Pid, Self::Number];

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Ip => "ip",
            Self::Uuid => "uuid",
            Self::Date => "date",
            Self::Duration => "duration",
            Self::Pid => "pid",
            Self::Number => "number",
        }
    }

    /// Regular expression of the mask. Uuid and Ip come before Number, because an address must not count as numbers.
    fn expression(self) -> &'static str {
        match self {
            Self::Host => "",
            Self::Uuid => r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b[0-9a-f]{32}\b",
            Self::Ip => {
                r"\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b|\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b|(?:\b[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?::(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6}\b)"
            }
            Self::Date => {
                r"\b[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?)?\b|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +)?(?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +[0-9]{1,2}|[0-9]{1,2} +(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec))\b(?:,? +(?:[0-9]{4}\b,? *)?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: +[AP]M\b)?)?(?: +[A-Z]{3,5}\b)?(?: +[0-9]{4}\b)?|\b[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{4}\b|\b[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?\b"
            }
            Self::Duration => {
                r"\bup +(?:[0-9]+ +(?:weeks?|days?|hours?|minutes?|mins?|secs?)\b(?:, +[0-9]+ +(?:weeks?|days?|hours?|minutes?|mins?|secs?)\b)*(?:, +[0-9]{1,3}:[0-9]{2}(?::[0-9]{2})?\b)?|[0-9]{1,3}:[0-9]{2}(?::[0-9]{2})?\b)|\b[0-9]+(?:\.[0-9]+)? ?(?:ns|us|µs|ms|s|sec|secs|seconds?|m|min|mins|minutes?|h|hours?|d|days?|weeks?)\b"
            }
            Self::Pid => r"\[[0-9]{1,10}\]|(?i:\bpids?[ =:]{1,3})[0-9]{1,10}\b",
            Self::Number => r"\b0x[0-9a-fA-F]+\b|[0-9]+(?:[.,][0-9]+)*",
        }
    }
}

impl FromStr for Mask {
    type Err = UnknownMask;

    fn from_str(word: &str) -> Result<Self, UnknownMask> {
        Self::ALL
            .into_iter()
            .find(|mask| mask.word() == word)
            .ok_or_else(|| UnknownMask { word: word.to_owned() })
    }
}

impl Masks {
    #[must_use]
    pub fn new(masks: &[Mask]) -> Self {
        let mut order = [Mask::Uuid, Mask::Ip, Mask::Date, Mask::Duration, Mask::Pid, Mask::Number].to_vec();
        order.retain(|mask| masks.contains(mask));
        let pattern = order
            .iter()
            .map(|mask| format!("(?P<{}>{})", mask.word(), mask.expression()))
            .collect::<Vec<_>>();
        let pattern = (!pattern.is_empty()).then(|| pattern.join("|"));
        let mut sorted = masks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        Self {
            masks: sorted,
            pattern: pattern.map(|pattern| {
                // ASCII word boundaries are faster, and keep the Unicode tables out of the program.
                let built = RegexBuilder::new(&pattern).unicode(false).build();
                built.expect("the expressions are constants, and a test builds all of them")
            }),
        }
    }

    /// Replaces masked text in `line`, such as each address by `<ip>`. Borrows `line` if nothing is masked.
    #[must_use]
    pub fn apply<'l>(&self, line: &'l str, names: &Names) -> Cow<'l, str> {
        let line = match &names.pattern {
            Some(pattern) if self.masks.contains(&Mask::Host) => without_names(line, pattern),
            _ => Cow::Borrowed(line),
        };
        let Some(pattern) = &self.pattern else { return line };
        let masked = |found: &Captures<'_>| {
            let mask = Mask::ALL.into_iter().find(|mask| found.name(mask.word()).is_some());
            // `up` introduces a duration, and is kept.
            let kept = match mask {
                Some(Mask::Duration) if found[0].starts_with("up") => "up ",
                _ => "",
            };
            format!("{kept}<{}>", mask.map_or("", Mask::word))
        };
        match pattern.replace_all(&line, masked) {
            Cow::Borrowed(_) => line,
            Cow::Owned(masked) => Cow::Owned(masked),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Mask> {
        self.masks.iter().copied()
    }
}

/// Parses the value of the command line: `host,ip`, `all` or `none`.
impl FromStr for Masks {
    type Err = UnknownMask;

    fn from_str(words: &str) -> Result<Self, UnknownMask> {
        let mut masks = Vec::new();
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "all" => masks.extend(Mask::ALL),
                "none" => masks.clear(),
                _ => masks.push(word.parse()?),
            }
        }
        Ok(Self::new(&masks))
    }
}

impl Default for Masks {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Names {
    /// Collects the names of a host: `name` from the operator (optionally with `user@` and `:port`) and `others`
    /// (`HostName`, an alias). The first label of a name counts too: `web1` of `web1.example.org`.
    #[must_use]
    pub fn new<'n>(name: &'n str, others: impl IntoIterator<Item = &'n str>) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for name in std::iter::once(name).chain(others) {
            let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
            let host = match host.split_once(':') {
                Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
                _ => host,
            };
            names.push(host);
            // The first part of an IP address identifies no host.
            if host.parse::<std::net::IpAddr>().is_err() {
                names.extend(host.split_once('.').map(|(first, _)| first));
            }
        }
        // One character or a plain number occurs in output too often to be masked as a host name.
        names.retain(|name| name.len() > 1 && !name.bytes().all(|byte| byte.is_ascii_digit()));
        names.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        names.dedup();
        if names.is_empty() {
            return Self { pattern: None };
        }
        let names: Vec<String> = names.into_iter().map(regex::escape).collect();
        // Names that exceed the size limit of a regular expression are not masked.
        let pattern = RegexBuilder::new(&names.join("|")).unicode(false).case_insensitive(true).build();
        Self { pattern: pattern.ok() }
    }
}

impl Digester {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one masked line. The length goes into the digest first, so that two lines differ from one joined line.
    pub fn line(&mut self, masked: &str) {
        self.0.update((masked.len() as u64).to_le_bytes());
        self.0.update(masked);
    }

    /// Adds another property that must be equal in a group, such as the exit status.
    pub fn fact(&mut self, fact: &str) {
        self.0.update([0xff; 8]);
        self.line(fact);
    }

    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// Writes the digest in hexadecimal, as in journals.
impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Groups hosts by digest: the largest group first, groups of equal size in the order of their first hosts.
#[must_use]
pub fn group<'a>(outputs: impl IntoIterator<Item = (&'a str, Digest)>) -> Vec<Group> {
    let mut groups: HashMap<Digest, Vec<&str>> = HashMap::new();
    for (host, digest) in outputs {
        groups.entry(digest).or_default().push(host);
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|(digest, mut hosts)| {
            nodeset::sort(&mut hosts);
            let folded = nodeset::fold(hosts.iter().copied());
            Group { digest, hosts: hosts.into_iter().map(str::to_owned).collect(), folded }
        })
        .collect();
    let places: HashMap<String, usize> = {
        let mut firsts: Vec<&str> = groups.iter().map(|group| group.hosts[0].as_str()).collect();
        nodeset::sort(&mut firsts);
        firsts.into_iter().enumerate().map(|(place, host)| (host.to_owned(), place)).collect()
    };
    groups.sort_by_key(|group| (std::cmp::Reverse(group.hosts.len()), places.get(&group.hosts[0]).copied()));
    groups
}

/// Replaces names that are whole words by `<host>`: `web1` in `web1.example.org`, not in `web10` or `web1-ib`.
fn without_names<'l>(line: &'l str, names: &Regex) -> Cow<'l, str> {
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let bytes = line.as_bytes();
    let mut out = String::new();
    let mut taken = 0;
    for found in names.find_iter(line) {
        let (start, end) = (found.start(), found.end());
        let before = start.checked_sub(1).map(|at| bytes[at]);
        let alone = ![before, bytes.get(end).copied()].into_iter().flatten().any(in_name);
        if alone {
            out.push_str(&line[taken..start]);
            out.push_str("<host>");
            taken = end;
        }
    }
    if taken == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(&line[taken..]);
    Cow::Owned(out)
}

/// The mask that may be meant.
fn near(word: &str) -> String {
    let words = Mask::ALL.map(Mask::word).into_iter().chain(["all", "none"]);
    nearest(word, words).map_or_else(String::new, |near| format!("did you mean \"{near}\"? "))
}

fn words() -> String {
    Mask::ALL.map(Mask::word).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(masks: &str, line: &str) -> String {
        let masks: Masks = masks.parse().unwrap();
        masks.apply(line, &Names::new("root@web1:22", ["web1.example.org", "10.0.0.7"])).into_owned()
    }

    #[test]
    fn each_mask_covers_what_it_is_named_after_and_no_more() {
        for (masks, line, shown) in [
            (
                "host",
                "web1 web10 web1.example.org WEB1: xweb1 web1-ib",
                "<host> web10 <host> <host>: xweb1 web1-ib",
            ),
            ("host", "web1 web1,web1", "<host> <host>,<host>"),
            ("none", "web1 10.0.0.7", "web1 10.0.0.7"),
            (
                "ip",
                "inet 10.0.0.9/24 2001:db8::1/64 fe80::5054:ff:fe12:3456%eth0 ::1 1.2.3",
                "inet <ip>/24 <ip>/64 <ip>%eth0 <ip> 1.2.3",
            ),
            ("ip", "ether 52:54:00:12:34:56 at 12:34:56", "ether <ip> at 12:34:56"),
            (
                "uuid",
                "UUID=8fc2f1a1-7d8b-4a92-9d0e-1b2c3d4e5f60 0123456789abcdef0123456789abcdef",
                "UUID=<uuid> <uuid>",
            ),
            ("date", "Fri Nov 20 19:28:56 UTC 2026", "<date>"),
            (
                "date",
                "2026-11-20T19:28:56.123Z|2026-11-20 19:28|20.11.2026|Nov 20 19:28:56 sshd",
                "<date>|<date>|<date>|<date> sshd",
            ),
            ("date", "Fri, 20 Nov 2026 19:28:56 x", "<date> x"),
            ("date", "version 1.2.3 port 8080", "version 1.2.3 port 8080"),
            (
                "duration",
                "took 12.5ms, 3 days, 5s of 7 cores",
                "took <duration>, <duration>, <duration> of 7 cores",
            ),
            ("duration", "up 3 days,  4:05,  2 users", "up <duration>,  2 users"),
            ("duration", "up 11:06,  0 user,  load", "up <duration>,  0 user,  load"),
            ("duration", "up 1 day, 3 min,  1 user", "up <duration>,  1 user"),
            ("duration", "up 10 hours, 32 minutes", "up <duration>"),
            ("duration", "it is up and running", "it is up and running"),
            (
                "date,duration",
                " 02:01:33 up 5 min,  0 user,  load average: 0.10",
                " <date> up <duration>,  0 user,  load average: 0.10",
            ),
            ("pid", "sshd[1234]: pid 77, PID=5, 99 bottles", "sshd<pid>: <pid>, <pid>, 99 bottles"),
            ("number", "1,234.5 of 0xff and v2", "<number> of <number> and v<number>"),
            ("date,number", "Nov 20 19:28:56 load 0.15", "<date> load <number>"),
            ("all", "web1 10.0.0.9 sshd[5] 5s 7", "<host> <ip> sshd<pid> <duration> <number>"),
        ] {
            assert_eq!(masked(masks, line), shown, "{masks}: {line}");
        }
        assert_eq!(
            "ip,dat".parse::<Masks>().unwrap_err().to_string(),
            "\"dat\" is not a mask; did you mean \"date\"? there is host, ip, uuid, date, duration, pid, number, all and none"
        );
    }

    fn digest(lines: &[&str]) -> Digest {
        let mut digester = Digester::new();
        lines.iter().for_each(|line| digester.line(line));
        digester.finish()
    }

    #[test]
    fn hosts_go_together_by_output_the_largest_group_first() {
        let (a, b, c) = (digest(&["a"]), digest(&["b"]), digest(&["c"]));
        let groups = group([("web9", c), ("web10", a), ("db1", b), ("web2", a), ("web1", a), ("db2", b)]);
        let folded: Vec<&str> = groups.iter().map(|group| group.folded.as_str()).collect();
        assert_eq!(folded, ["web[1-2,10]", "db[1-2]", "web9"]);
        assert_eq!(groups[0].hosts, ["web1", "web2", "web10"]);
    }

    #[test]
    fn lines_are_not_the_same_as_their_sum() {
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&["ab"]), digest(&["ab", ""]));
        let mut status = Digester::new();
        status.fact("1");
        assert_ne!(status.finish(), digest(&["1"]));
    }
}
