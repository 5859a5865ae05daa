//! What OpenSSH asks by its `KnownHostsCommand`, and what it is answered: the judge's decision, and lines with which OpenSSH
//! comes to the same one.

use logic::identity::{Decision, Effect, HostFile, Index, Name, SshfpAnswer, Verdict, line_of, lines_about};
use logic::ssh::key::PublicKey;

use super::IdentityError;
use super::judge::{Identities, shown};
use super::load::{self, Read};
use super::noticed::Flushed;
use super::store::Store;

/// What is asked of a host.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// What the user calls it, without a port.
    pub name: &'a str,
    /// The port.
    pub port: u16,
    /// What stands before each line: what OpenSSH compares with.
    pub pattern: &'a str,
    /// The blob that the host showed; `None` where OpenSSH only wants to know which types to ask for.
    pub shown: Option<&'a PublicKey>,
}

/// The answer.
#[derive(Debug)]
pub enum Answer {
    /// Lines of `known_hosts`. For what was shown there is one, and only if it is accepted.
    Lines(Vec<String>),
    /// What was shown is refused.
    Refused {
        /// With everything that is known of it.
        decision: Box<Decision>,
        /// All hosts.
        index: Box<Index>,
    },
}

impl Store {
    /// Answers from as few files as can tell: the host's own, the authorities and the list of revoked keys. `None` where they
    /// cannot: what they refuse is for [`Identities::known_hosts`], which knows the whole reason, too.
    ///
    /// They tell as much as all files, because the table of decisions reads the file of another host only of a name that is not
    /// that of this file, and of a key that neither a pin nor an authority vouches for.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn known_hosts_quickly(&self, asked: &Asked<'_>) -> Result<Option<Vec<String>>, IdentityError> {
        let Some(index) = self.load_about(asked.name, asked.port)? else { return Ok(None) };
        let Some(blob) = asked.shown else {
            let lines = lines_about(&index, asked.name, asked.port, asked.pattern);
            return Ok((!lines.is_empty()).then_some(lines));
        };
        let (identities, offered) = (Identities::of(self.clone(), index), shown(blob));
        let decision =
            identities.decision_with(&SshfpAnswer::NotAsked, asked.name, None, asked.port, &offered);
        // A pin is recorded by `Identities::known_hosts`, which has read all files.
        let records = decision.effects.iter().any(|effect| matches!(effect, Effect::Pin(..)));
        match decision.verdict {
            Verdict::Accepted { .. } if !records => Ok(Some(vec![line_of(&offered, asked.pattern)])),
            _ => Ok(None),
        }
    }

    /// Reads what concerns the host that is called `name`, if that is the name of its file, and no file of another host can give
    /// the name and the port another meaning.
    fn load_about(&self, name: &str, port: u16) -> Result<Option<Index>, IdentityError> {
        let hosts = self.places().hosts();
        let read = |name: &Name| load::one(&hosts, name, ".host", HostFile::parse);
        let exactly = Name::with_port(name, port).ok().and_then(|name| read(&name));
        let of_name = || {
            let found = read(&name.parse().ok()?)?;
            // Of another port than its own, another host may have name and port as an alias.
            let is_there = matches!(&found, Read::Well(host) if host.port() == Some(port));
            is_there.then_some(found)
        };
        let Some(Read::Well(host)) = exactly.or_else(of_name) else { return Ok(None) };
        // Names and keys of other hosts are read under a directory that must be ours; so is this one.
        super::files::directory_is_ours(&hosts)?;
        let revoked = load::revoked(self.places())?;
        Ok(Some(Index::new(vec![host], Vec::new(), load::authorities(self.places())?, revoked)))
    }
}

impl Identities {
    /// Answers from all files, and asks the DNS where the host allows that.
    pub async fn known_hosts(self, asked: &Asked<'_>) -> (Answer, Flushed) {
        let Asked { name, port, pattern, shown: blob } = *asked;
        let Some(blob) = blob else {
            return (Answer::Lines(lines_about(self.index(), name, port, pattern)), Flushed::default());
        };
        let offered = shown(blob);
        let decision = self.decision(name, None, port, &offered).await;
        if let Verdict::Refused { .. } = decision.verdict {
            let (decision, index) = (Box::new(decision), Box::new(self.into_index()));
            return (Answer::Refused { decision, index }, Flushed::default());
        }
        let flushed = self.record_pins(decision.effects);
        (Answer::Lines(vec![line_of(&offered, pattern)]), flushed)
    }

    /// Records which key was proved by what vouches for the key itself. When and where the host was good is not known here: OpenSSH
    /// asks before the host has proved that it holds the key.
    fn record_pins(&self, effects: Vec<Effect>) -> Flushed {
        let pins = effects.into_iter().filter(|effect| matches!(effect, Effect::Pin(..)));
        self.noticed().effects.extend(pins);
        self.flush()
    }

    fn into_index(mut self) -> Index {
        std::mem::take(&mut self.index)
    }
}
