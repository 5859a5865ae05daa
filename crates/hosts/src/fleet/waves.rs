//! Waves of a run, and conditions that stop the run: `penstock run --waves 1,10%,all --stop-if 'failed>2%'`.
//! `fleet/run.rs` runs one wave after the other.

use std::fmt;
use std::str::FromStr;

use super::ending::{Ending, Remote};
use text::nearest::nearest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waves(Vec<Size>);

/// Size of one wave: a number of hosts, or the share of all hosts at which the wave ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Count(usize),
    /// Share in hundredths of a per cent.
    Percent(u32),
    All,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {why}{}", did_you_mean(meant.as_deref()))]
pub struct Wrong {
    text: String,
    why: &'static str,
    /// Value that may be meant.
    meant: Option<String>,
}

fn did_you_mean(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}

impl FromStr for Waves {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Self, Wrong> {
        let sizes: Result<Vec<Size>, Wrong> = text.split(',').map(|word| size(word.trim())).collect();
        let mut sizes = sizes?;
        if let Some(at) = sizes.iter().position(|size| *size == Size::All)
            && at + 1 < sizes.len()
        {
            let text = text.to_owned();
            return Err(Wrong { text, why: "has waves after `all`", meant: None });
        }
        if sizes.last() != Some(&Size::All) {
            sizes.push(Size::All);
        }
        Ok(Self(sizes))
    }
}

impl fmt::Display for Waves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, size) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "," })?;
            match size {
                Size::Count(count) => write!(f, "{count}")?,
                Size::Percent(share) => write!(f, "{}%", f64::from(*share) / 100.0)?,
                Size::All => f.write_str("all")?,
            }
        }
        Ok(())
    }
}

fn size(word: &str) -> Result<Size, Wrong> {
    let meant = nearest(word, ["all"]).map(str::to_owned);
    let wrong = |why| Wrong { text: word.to_owned(), why, meant: meant.clone() };
    if word == "all" || word == "rest" {
        return Ok(Size::All);
    }
    if let Some(percent) = word.strip_suffix('%') {
        return hundredths(percent)
            .filter(|share| *share > 0)
            .map(Size::Percent)
            .ok_or(wrong("is not a wave: a share is above 0% and at most 100%"));
    }
    match word.parse() {
        Ok(0) | Err(_) => Err(wrong("is not a wave: give a number of hosts, a share like 10%, or all")),
        Ok(count) => Ok(Size::Count(count)),
    }
}

/// Parses a percentage as hundredths of a per cent.
fn hundredths(text: &str) -> Option<u32> {
    let value: f64 = text.parse().ok()?;
    (0.0..=100.0).contains(&value).then_some((value * 100.0).round() as u32)
}

impl Waves {
    /// Number of hosts from the first at which each wave ends: increasing, the last is `hosts`.
    ///
    /// A count adds that number of hosts; a share ends the wave at that share of all hosts.
    #[must_use]
    pub fn ends(&self, hosts: usize) -> Vec<usize> {
        let mut ends: Vec<usize> = Vec::new();
        let mut at = 0;
        for size in &self.0 {
            let end = match *size {
                Size::Count(count) => at + count,
                Size::Percent(share) => (hosts * share as usize).div_ceil(10_000),
                Size::All => hosts,
            };
            let end = end.min(hosts);
            if end > at {
                ends.push(end);
                at = end;
            }
        }
        ends
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopIf {
    /// More hosts than this number failed.
    Failed(usize),
    /// More than this share of the finished hosts failed (in hundredths of a per cent).
    FailedShare(u32),
    /// The finished hosts have different outputs.
    Differs,
}

impl FromStr for StopIf {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Self, Wrong> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let wrong = Wrong {
            text: text.to_owned(),
            why: "is not a condition: `failed>2%`, `failed>3` or `differs`",
            meant: meant(&plain),
        };
        if plain == "differs" {
            return Ok(Self::Differs);
        }
        let bound = plain.strip_prefix("failed>").ok_or(wrong.clone())?;
        match bound.strip_suffix('%') {
            Some(share) => hundredths(share).map(Self::FailedShare).ok_or(wrong),
            None => bound.parse().map(Self::Failed).map_err(|_| wrong),
        }
    }
}

/// A condition that may be meant by a text that is none.
fn meant(text: &str) -> Option<String> {
    let (word, bound) = text.split_once('>').map_or((text, None), |(word, bound)| (word, Some(bound)));
    Some(match (nearest(word, ["failed", "differs"])?, bound) {
        ("failed", bound) => format!("failed>{}", bound.unwrap_or("0")),
        (word, _) => word.to_owned(),
    })
}

impl fmt::Display for StopIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(count) => write!(f, "failed>{count}"),
            Self::FailedShare(share) => write!(f, "failed>{}%", f64::from(*share) / 100.0),
            Self::Differs => f.write_str("differs"),
        }
    }
}

impl StopIf {
    /// Returns the reason to stop after the hosts `done`, or `None`. `outputs` is the number of different outputs.
    ///
    /// A host has failed if its command did not exit with 0, for any reason.
    #[must_use]
    pub fn verdict<'a>(self, done: impl IntoIterator<Item = &'a Ending>, outputs: usize) -> Option<String> {
        let (mut all, mut failed, mut unknown) = (0, 0, 0);
        for ending in done {
            all += 1;
            failed += usize::from(!ending.is_success());
            unknown += usize::from(ending.remote() == Remote::MayHaveRun);
        }
        let stop = match self {
            Self::Failed(bound) => failed > bound,
            Self::FailedShare(share) => failed * 10_000 > all * share as usize,
            Self::Differs => outputs > 1,
        };
        let unclear = if unknown == 0 { String::new() } else { format!(" ({unknown} of them may have run)") };
        stop.then(|| match self {
            Self::Differs => format!("{outputs} different outputs"),
            _ => format!("{failed} of {all} hosts failed{unclear}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_grow_to_all_hosts_and_no_wave_is_empty() {
        let ends = |text: &str, hosts| text.parse::<Waves>().unwrap().ends(hosts);
        assert_eq!(ends("1,10%,all", 200), [1, 20, 200]);
        assert_eq!(ends("1,10%", 5), [1, 5], "10% of 5 is the one that has run");
        assert_eq!(ends("2, 2, rest", 3), [2, 3]);
        assert_eq!(ends("100%", 7), [7]);
        assert_eq!(ends("1", 0), Vec::<usize>::new());
    }

    #[test]
    fn wrong_waves_are_named() {
        for text in ["", "0", "-1", "0%", "101%", "all,1", "NaN%", "ten"] {
            assert!(text.parse::<Waves>().is_err(), "{text}");
        }
    }

    #[test]
    fn stop_conditions_are_judged_over_all_that_has_run() {
        let ok = Ending::Exited(0);
        let bad = Ending::Exited(1);
        let hosts = |failed: usize, all: usize| (0..all).map(move |at| if at < failed { 1 } else { 0 });
        let judge = |text: &str, failed, all, outputs| {
            let endings: Vec<Ending> =
                hosts(failed, all).map(|code| if code == 1 { bad.clone() } else { ok.clone() }).collect();
            text.parse::<StopIf>().unwrap().verdict(&endings, outputs)
        };
        assert_eq!(judge("failed>2%", 2, 100, 1), None);
        assert_eq!(judge("failed > 2%", 3, 100, 1).as_deref(), Some("3 of 100 hosts failed"));
        assert_eq!(judge("failed>3", 3, 4, 1), None);
        assert_eq!(judge("failed>0", 1, 50, 1).as_deref(), Some("1 of 50 hosts failed"));
        assert_eq!(judge("differs", 0, 50, 2).as_deref(), Some("2 different outputs"));
        assert!(["failed<1", "failed"].iter().all(|text| text.parse::<StopIf>().is_err()));
    }

    #[test]
    fn waves_are_written_as_they_are_read() {
        for text in ["1,10%,all", "5,0.5%,33.33%,all", "all"] {
            let waves: Waves = text.parse().unwrap();
            assert_eq!((waves.to_string().as_str(), waves.to_string().parse()), (text, Ok(waves)));
        }
    }
}
