//! Answers OpenSSH's `KnownHostsCommand`: makes the judge's decision, and returns lines with which OpenSSH comes to the
//! same decision.

use hosts::identity::{Decision, Effect, HostFile, Index, Name, SshfpAnswer, Verdict, line_of, lines_about};
use hosts::ssh::key::PublicKey;

use super::IdentityError;
use super::flush::Flushed;
use super::judge::{Identities, shown};
use super::load::{self, Read};
use super::store::Store;

#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Name that the user typed, without a port.
    pub name: &'a str,
    pub port: u16,
    /// First field of each line, which OpenSSH compares with the host.
    pub pattern: &'a str,
    /// Key blob of the host; `None` if OpenSSH asks only for the key types to offer.
    pub shown: Option<&'a PublicKey>,
}

#[derive(Debug)]
pub enum Answer {
    /// Lines of `known_hosts`. For an accepted key, there is exactly one.
    Lines(Vec<String>),
    Refused {
        decision: Box<Decision>,
        index: Box<Index>,
    },
}

impl Store {
    /// Answers from a few files: the host's own file, the authorities and the list of revoked keys. `None` if these are
    /// not enough: [`Identities::known_hosts`] decides then, and has the whole reason of a refusal.
    ///
    /// For an accepted host, these files are enough: the table of decisions reads other hosts' files only for a name
    /// that is not the name of the host's file, or for a key that neither a pin nor an authority vouches for.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub fn known_hosts_quickly(&self, asked: &Asked<'_>) -> Result<Option<Vec<String>>, IdentityError> {
        let Some(index) = self.load_about(asked.name, asked.port)? else { return Ok(None) };
        let Some(blob) = asked.shown else {
            let lines = lines_about(&index, asked.name, asked.port, asked.pattern);
            return Ok((!lines.is_empty()).then_some(lines));
        };
        let (identities, offered) = (Identities::of(self.clone(), index), shown(blob));
        let decision =
            identities.decision_with(&SshfpAnswer::NotAsked, asked.name, None, asked.port, &offered);
        // Only `Identities::known_hosts`, which has read all files, records a pin.
        let records = decision.effects.iter().any(|effect| matches!(effect, Effect::Pin(..)));
        match decision.verdict {
            Verdict::Accepted { .. } if !records => Ok(Some(vec![line_of(&offered, asked.pattern)])),
            _ => Ok(None),
        }
    }

    /// Reads the file of the host `name`, the authorities and the revoked keys. `None` if `name` is not the name of a
    /// file, or if the file of another host could give another meaning to name and port.
    fn load_about(&self, name: &str, port: u16) -> Result<Option<Index>, IdentityError> {
        let hosts = self.places().hosts();
        let read = |name: &Name| load::one(&hosts, name, ".host", HostFile::parse);
        let exactly = Name::with_port(name, port).ok().and_then(|name| read(&name));
        let of_name = || {
            let found = read(&name.parse().ok()?)?;
            // For a port that is not the host's own, another host may have name and port as an alias.
            let is_there = matches!(&found, Read::Well(host) if host.port() == Some(port));
            is_there.then_some(found)
        };
        let Some(Read::Well(host)) = exactly.or_else(of_name) else { return Ok(None) };
        // The directory of all hosts must belong to this user when all are read; the same applies here.
        super::files::directory_is_ours(&hosts)?;
        let revoked = load::revoked(self.places())?;
        Ok(Some(Index::new(vec![host], Vec::new(), load::authorities(self.places())?, revoked)))
    }
}

impl Identities {
    /// Answers from all files, and asks the DNS if the host allows it.
    pub async fn known_hosts(self, asked: &Asked<'_>) -> (Answer, Flushed) {
        let Asked { name, port, pattern, shown: blob } = *asked;
        let Some(blob) = blob else {
            return (Answer::Lines(lines_about(self.index(), name, port, pattern)), Flushed::default());
        };
        let offered = shown(blob);
        let decision = self.decision(name, None, port, &offered).await;
        if let Verdict::Refused { .. } = decision.verdict {
            let flushed = self.record(&decision.effects, |effect| matches!(effect, Effect::Changed { .. }));
            let (decision, index) = (Box::new(decision), Box::new(self.into_index()));
            return (Answer::Refused { decision, index }, flushed);
        }
        let flushed = self.record(&decision.effects, |effect| matches!(effect, Effect::Pin(..)));
        (Answer::Lines(vec![line_of(&offered, pattern)]), flushed)
    }

    /// Records some effects: new pins, and changed keys. The date and address of a good connection are not recorded:
    /// OpenSSH calls this program before the host has proved that it holds the key.
    fn record(&self, effects: &[Effect], is_recorded: impl Fn(&Effect) -> bool) -> Flushed {
        self.noticed().effects.extend(effects.iter().filter(|effect| is_recorded(effect)).cloned());
        self.flush()
    }

    fn into_index(mut self) -> Index {
        std::mem::take(&mut self.index)
    }
}
