//! Shows equal outputs once: the largest group first, each under the names of its hosts as a node set. Printed when all
//! hosts have ended, because the groups are complete only then.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use hosts::fleet::difference::Difference;
use hosts::fleet::ending::{Ending, Remote};
use hosts::fleet::fold::{self, Digest, Digester, Group, Masks, Names};
use hosts::fleet::line::{LONGEST, LineSplitter, Start, harmless, last_writing};
use hosts::fleet::verdict::title;

use super::Colour;
use super::transcript::{Transcript, TranscriptStore};
use crate::run::happening::Stream;
use crate::run::output::View;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Complete,
    /// The output of the largest group in full, and the differences of the others.
    Difference,
}

/// Names of a host, which its output may contain.
#[derive(Debug, Clone)]
pub struct Called {
    pub name: String,
    /// The second name of the host (`HostName`), if known.
    pub also: Option<String>,
}

pub struct Folded {
    hosts: Vec<Called>,
    masks: Masks,
    shown: Shown,
    colour: Colour,
    speaking: HashMap<usize, HostOutput>,
    ended: Vec<Option<Digest>>,
    /// The output of one host of each group.
    kept: HashMap<Digest, Kept>,
    shelf: TranscriptStore,
}

/// Output of a host that has not ended.
struct HostOutput {
    names: Names,
    out: StreamOutput,
    err: StreamOutput,
}

struct StreamOutput {
    cutter: LineSplitter,
    digester: Digester,
    said: Transcript,
}

struct Kept {
    host: usize,
    out: Transcript,
    err: Transcript,
    title: Option<String>,
    ran: Ran,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ran {
    ToItsEnd,
    Not,
}

impl Folded {
    #[must_use]
    pub fn new(hosts: Vec<Called>, masks: Masks, shown: Shown, colour: Colour) -> Self {
        let ended = vec![None; hosts.len()];
        Self {
            hosts,
            masks,
            shown,
            colour,
            speaking: HashMap::new(),
            ended,
            kept: HashMap::new(),
            shelf: TranscriptStore::new(),
        }
    }

    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let ended = self.hosts.iter().zip(&self.ended);
        let groups = fold::group(ended.filter_map(|(host, digest)| Some((host.name.as_str(), (*digest)?))));
        let whole = match self.shown {
            Shown::Complete => None,
            Shown::Difference => self.majority(&groups),
        };
        let majority = whole.map(|digest| (digest, self.lines(digest, LineForm::Common)));
        let first = groups.iter().filter(|group| Some(group.digest) == whole);
        for group in first.chain(groups.iter().filter(|group| Some(group.digest) != whole)) {
            let reference = majority
                .as_ref()
                .filter(|(digest, _)| *digest != group.digest && self.says_anything(group.digest));
            match reference {
                Some((_, majority)) => {
                    self.head(group, ": the difference", out)?;
                    self.differ(majority, group, out)?;
                }
                None => {
                    self.head(group, if self.is_silent(group.digest) { ": no output" } else { "" }, out)?;
                    self.body(group, out)?;
                }
            }
        }
        Ok(())
    }

    /// The largest group whose hosts ran the command.
    fn majority(&self, groups: &[Group]) -> Option<Digest> {
        let ran = |group: &&Group| self.kept.get(&group.digest).is_some_and(|kept| kept.ran == Ran::ToItsEnd);
        (groups.len() > 1).then(|| groups.iter().find(ran).map(|group| group.digest)).flatten()
    }

    fn says_anything(&self, digest: Digest) -> bool {
        self.kept
            .get(&digest)
            .is_some_and(|kept| kept.ran == Ran::ToItsEnd || !kept.out.is_empty() || !kept.err.is_empty())
    }

    fn is_silent(&self, digest: Digest) -> bool {
        let silent = |kept: &Kept| kept.out.is_empty() && kept.err.is_empty() && kept.title.is_none();
        self.kept.get(&digest).is_some_and(silent)
    }

    fn head(&self, group: &Group, about: &str, out: &mut dyn Write) -> io::Result<()> {
        let (on, off) = self.paint("1");
        writeln!(out, "{RULE}\n{on}{} ({}){off}{about}\n{RULE}", group.folded, group.hosts.len())
    }

    fn body(&self, group: &Group, out: &mut dyn Write) -> io::Result<()> {
        // A host alone in its group is shown with its own names.
        let face = if group.hosts.len() > 1 { LineForm::Common } else { LineForm::Own };
        for line in self.lines(group.digest, face) {
            let (on, off) = match line.as_str() {
                line if line.starts_with("=>") || line.starts_with("=:") => self.paint("31"),
                _ => ("", ""),
            };
            writeln!(out, "{on}{line}{off}")?;
        }
        Ok(())
    }

    fn differ(&self, majority: &[String], group: &Group, out: &mut dyn Write) -> io::Result<()> {
        let other = self.lines(group.digest, LineForm::Common);
        let [majority, other]: [Vec<&str>; 2] =
            [majority, &other].map(|lines| lines.iter().map(String::as_str).collect());
        let difference = Difference::new(&majority, &other, MOST_SHOWN);
        for line in difference.to_string().lines() {
            let (on, off) = match line.as_bytes().first() {
                Some(b'-') => self.paint("31"),
                Some(b'+') => self.paint("32"),
                Some(b'@') => self.paint("36"),
                _ => ("", ""),
            };
            writeln!(out, "{on}{line}{off}")?;
        }
        Ok(())
    }

    /// All lines of a group, with a mark before each line that is not standard output.
    fn lines(&self, digest: Digest, face: LineForm) -> Vec<String> {
        let Some(kept) = self.kept.get(&digest) else { return Vec::new() };
        let host = &self.hosts[kept.host];
        let names = names(host);
        let shown = |line: &str| match face {
            LineForm::Own => line.to_owned(),
            LineForm::Common => self.masks.apply(line, &names).into_owned(),
        };
        let mut lines = Vec::new();
        for (said, stream) in [(&kept.out, Stream::Stdout), (&kept.err, Stream::Stderr)] {
            let text =
                self.shelf.read(said).unwrap_or_else(|error| format!("cannot read this again: {error}"));
            lines.extend(text.lines().map(|line| marked(stream, &shown(line))));
            if said.left_out() > 0 {
                lines.push(format!(
                    "=: {} bytes more of {} were compared, and are not kept",
                    said.left_out(),
                    match stream {
                        Stream::Stdout => "standard output",
                        Stream::Stderr => "standard error",
                    }
                ));
            }
        }
        lines.extend(kept.title.as_ref().map(|title| format!("=: {title}")));
        lines
    }

    fn paint(&self, code: &'static str) -> (&'static str, &'static str) {
        let on = match code {
            "1" => "\x1b[1m",
            "31" => "\x1b[31m",
            "32" => "\x1b[32m",
            _ => "\x1b[36m",
        };
        match self.colour {
            Colour::On => (on, "\x1b[0m"),
            Colour::Off => ("", ""),
        }
    }

    fn speaker(&mut self, host: usize) -> HostOutput {
        self.speaking.remove(&host).unwrap_or_else(|| HostOutput {
            names: names(&self.hosts[host]),
            out: StreamOutput::new(),
            err: StreamOutput::new(),
        })
    }
}

/// Whether a line keeps the name of its host, or has the placeholder for all hosts of the group.
#[derive(Clone, Copy)]
enum LineForm {
    Own,
    Common,
}

fn names(host: &Called) -> Names {
    Names::new(&host.name, host.also.as_deref())
}

/// Marks a line of standard error. A line of standard output that looks like a mark is marked too.
fn marked(stream: Stream, line: &str) -> String {
    match stream {
        Stream::Stderr => format!("=> {line}"),
        Stream::Stdout if MARKS.iter().any(|mark| line.starts_with(mark)) => format!("-> {line}"),
        Stream::Stdout => line.to_owned(),
    }
}

impl StreamOutput {
    fn new() -> Self {
        Self { cutter: LineSplitter::new(LONGEST), digester: Digester::new(), said: Transcript::default() }
    }

    fn take(&mut self, names: &Names, masks: &Masks, shelf: &mut TranscriptStore, input: Input<'_>) {
        let (digester, said) = (&mut self.digester, &mut self.said);
        let mut each = |piece: hosts::fleet::line::Piece<'_>| {
            let line: Cow<'_, str> = harmless(last_writing(piece.bytes).0);
            digester.line(&masks.apply(&line, names));
            match piece.start {
                Start::Line => shelf.keep(said, &line),
                Start::Within => shelf.keep(said, &format!("{}{line}", piece.start.mark())),
            }
        };
        match input {
            Input::More(bytes) => self.cutter.push(bytes, &mut each),
            Input::End => {
                self.cutter.finish(&mut each);
                shelf.settle(&mut self.said);
            }
        }
    }
}

enum Input<'a> {
    More(&'a [u8]),
    End,
}

impl View for Folded {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], _: &mut dyn Write) -> io::Result<()> {
        if host >= self.hosts.len() {
            return Ok(());
        }
        let mut speaker = self.speaker(host);
        let half = match stream {
            Stream::Stdout => &mut speaker.out,
            Stream::Stderr => &mut speaker.err,
        };
        half.take(&speaker.names, &self.masks, &mut self.shelf, Input::More(bytes));
        self.speaking.insert(host, speaker);
        Ok(())
    }

    fn ended(&mut self, host: usize, ending: &Ending, _: Duration, _: &mut dyn Write) -> io::Result<()> {
        if host >= self.hosts.len() {
            return Ok(());
        }
        let mut speaker = self.speaker(host);
        for half in [&mut speaker.out, &mut speaker.err] {
            half.take(&speaker.names, &self.masks, &mut self.shelf, Input::End);
        }
        let title = (!ending.is_success()).then(|| title(ending));
        let mut all = Digester::new();
        for half in [speaker.out.digester, speaker.err.digester] {
            all.fact(&half.finish().to_string());
        }
        all.fact(title.as_deref().unwrap_or_default());
        let digest = all.finish();
        self.ended[host] = Some(digest);
        if self.kept.contains_key(&digest) {
            self.shelf.forget(speaker.out.said);
            self.shelf.forget(speaker.err.said);
            return Ok(());
        }
        let ran = match ending.remote() {
            Remote::Ended => Ran::ToItsEnd,
            Remote::NotStarted | Remote::MayHaveRun => Ran::Not,
        };
        let kept = Kept { host, out: speaker.out.said, err: speaker.err.said, title, ran };
        self.kept.insert(digest, kept);
        Ok(())
    }

    fn look(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.show(out)
    }

    fn differing(&self, hosts: &[usize]) -> Option<usize> {
        let digests = hosts.iter().filter_map(|host| self.ended.get(*host));
        Some(digests.collect::<std::collections::HashSet<_>>().len())
    }

    fn finish(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.show(out)
    }
}

const RULE: &str = "---------------";
const MARKS: [&str; 3] = ["->", "=>", "=:"];

/// Limit of the lines of one difference.
const MOST_SHOWN: usize = 200;

#[cfg(test)]
mod tests;
