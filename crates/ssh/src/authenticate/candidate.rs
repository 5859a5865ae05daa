//! The keys to offer, in OpenSSH's order: certificates that the configuration names; keys that the configuration names
//! and the agent holds; other keys of the agent; key files. A certificate comes before its own key.
//!
//! If the user gave no order, a key that other hosts accepted comes first. Keys that the user names keep their order,
//! because a server may give different rights for different keys.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hosts::ssh::key::{Fingerprint, PublicKey as Blob};
use jiff::Timestamp;
use russh::keys::ssh_key::Certificate;
use russh::keys::{Algorithm, HashAlg, PublicKey};

use super::attempt::{Answer, Attempt, Source, What};
use crate::agent::{Agent, AgentKey};
use crate::keys::certificate::{self, CertificateOutlook};
use crate::keys::file::Private;
use crate::keys::{Identity, KeyFault, KeyFileFault, KeyPlan, Keys, LoadedKey, Named, OtherKeys};
use text::terminal::escaped;

pub(super) struct Candidate {
    /// `None` if the public key is known only after the file is opened.
    pub(super) offer: Option<Offer>,
    pub(super) with: With,
    source: Source,
    doubt: Option<String>,
}

/// The key or certificate that is offered to the server.
#[derive(Clone)]
pub(super) enum Offer {
    Key(PublicKey),
    Certificate(Arc<Certificate>),
}

pub(super) enum With {
    File(Arc<LoadedKey>),
    Agent {
        agent: Arc<Agent>,
        /// Key or certificate blob, as the agent listed it.
        key: Blob,
    },
}

impl Candidate {
    /// Returns a name of the key for the user.
    pub(super) fn name(&self) -> String {
        match &self.offer {
            Some(offer) => format!("{} {}", self.source, offer.fingerprint()),
            None => self.source.to_string(),
        }
    }

    pub(super) fn what(&self) -> What {
        match (&self.offer, &self.doubt) {
            (None, _) => What::File,
            (Some(offer), doubt) => match offer.what() {
                What::Certificate { algorithm, fingerprint, id, .. } => {
                    What::Certificate { algorithm, fingerprint, id, doubt: doubt.clone() }
                }
                what => what,
            },
        }
    }

    pub(super) fn source(&self) -> Source {
        self.source.clone()
    }
}

impl Offer {
    pub(super) fn what(&self) -> What {
        let algorithm = self.algorithm(None);
        let fingerprint = self.fingerprint();
        match self {
            Self::Key(_) => What::Key { algorithm, fingerprint },
            Self::Certificate(certificate) => {
                let id = escaped(certificate.key_id(), 80);
                What::Certificate { algorithm, fingerprint, id, doubt: None }
            }
        }
    }

    /// Returns the algorithm for the offer. For an RSA key, `hash` is part of its name.
    pub(super) fn algorithm(&self, hash: Option<HashAlg>) -> String {
        match self {
            Self::Key(key) => with_hash(key.algorithm(), hash).to_string(),
            Self::Certificate(certificate) => with_hash(certificate.algorithm(), hash).to_certificate_type(),
        }
    }

    /// Returns the algorithm name that the signature blob starts with.
    pub(super) fn signature_algorithm(&self, hash: Option<HashAlg>) -> String {
        let algorithm = match self {
            Self::Key(key) => key.algorithm(),
            Self::Certificate(certificate) => certificate.algorithm(),
        };
        with_hash(algorithm, hash).to_string()
    }

    pub(super) fn is_rsa(&self) -> bool {
        matches!(
            match self {
                Self::Key(key) => key.algorithm(),
                Self::Certificate(certificate) => certificate.algorithm(),
            },
            Algorithm::Rsa { .. }
        )
    }

    pub(super) fn rsa_bits(&self) -> Option<usize> {
        let blob = match self {
            Self::Key(key) => key.to_bytes(),
            Self::Certificate(certificate) => certificate.to_bytes(),
        };
        hosts::ssh::key::PublicKey::from_blob(&blob.ok()?).ok()?.rsa_bits()
    }

    /// Returns the fingerprint of the key; for a certificate, of the certified key.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.sha256())
    }

    fn sha256(&self) -> [u8; 32] {
        let fingerprint = match self {
            Self::Key(key) => key.fingerprint(HashAlg::Sha256),
            Self::Certificate(certificate) => certificate.public_key().fingerprint(HashAlg::Sha256),
        };
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&fingerprint.as_bytes()[..32]);
        bytes
    }

    fn is_dsa(&self) -> bool {
        self.signature_algorithm(None) == "ssh-dss"
    }
}

fn with_hash(algorithm: Algorithm, hash: Option<HashAlg>) -> Algorithm {
    match algorithm {
        Algorithm::Rsa { .. } => Algorithm::Rsa { hash },
        other => other,
    }
}

/// Reads all keys of the plan and puts them in order. The returned attempts are the steps that need no server.
pub(super) async fn gather(
    keys: &Keys,
    plan: &KeyPlan,
    user: &str,
    now: Timestamp,
) -> (Vec<Candidate>, Vec<Attempt>) {
    let mut gathering = CandidateCollector {
        keys,
        user,
        now,
        steps: Vec::new(),
        certificates: Vec::new(),
        agent: Vec::new(),
        others: Vec::new(),
        files: Vec::new(),
        seen: HashSet::new(),
    };
    let held = gathering.ask_agent(plan).await;
    let mut files = Vec::new();
    for identity in &plan.identities {
        files.push(gathering.read(identity).await);
    }
    for path in &plan.certificates {
        gathering.explicit(path, &files, &held).await;
    }
    for file in &files {
        gathering.identity(file, &held).await;
    }
    if plan.others == OtherKeys::Offered {
        gathering.rest_of(&held);
    }
    let CandidateCollector { steps, certificates, agent, mut others, mut files, .. } = gathering;
    let rank = |candidate: &Candidate| {
        Reverse(candidate.offer.as_ref().map_or(0, |offer| keys.worked(offer.fingerprint())))
    };
    others.sort_by_key(rank);
    // Keys with a known public key come before keys whose file must be opened first.
    files.sort_by_key(|(named, candidate)| {
        let blind = candidate.offer.is_none();
        (blind, *named != Named::ByUser, (*named == Named::ByDefault).then(|| rank(candidate)))
    });
    let files = files.into_iter().map(|(_, candidate)| candidate);
    (certificates.into_iter().chain(agent).chain(others).chain(files).collect(), steps)
}

struct ReadIdentity<'a> {
    identity: &'a Identity,
    file: Result<Arc<LoadedKey>, KeyFault>,
    public: Option<PublicKey>,
}

struct AgentKeys {
    agent: Option<Arc<Agent>>,
    keys: Arc<[AgentKey]>,
}

struct CandidateCollector<'a> {
    keys: &'a Keys,
    user: &'a str,
    now: Timestamp,
    steps: Vec<Attempt>,
    certificates: Vec<Candidate>,
    agent: Vec<Candidate>,
    others: Vec<Candidate>,
    files: Vec<(Named, Candidate)>,
    /// Blobs of keys and certificates that are in one of the lists already.
    seen: HashSet<Vec<u8>>,
}

impl CandidateCollector<'_> {
    async fn ask_agent(&mut self, plan: &KeyPlan) -> AgentKeys {
        let Some(socket) = &plan.agent else {
            return AgentKeys { agent: None, keys: Arc::new([]) };
        };
        let agent = self.keys.agent(socket);
        let source = Source::Agent { socket: socket.clone(), comment: String::new(), named_by: None };
        let (keys, answer) = match agent.list().await {
            Ok(keys) => {
                let count = keys.len();
                (keys, Answer::Holds(count))
            }
            Err(fault) => {
                let advice = Some(fault.advice());
                (Arc::from([]), Answer::Unusable { why: fault.to_string(), advice })
            }
        };
        self.steps.push(Attempt { what: What::AgentKeys, source, answer });
        AgentKeys { agent: Some(agent), keys }
    }

    async fn read<'i>(&self, identity: &'i Identity) -> ReadIdentity<'i> {
        let file = self.keys.file(&identity.path).await;
        let public = match &file {
            Ok(key) => key.file.public.clone(),
            // The `.pub` file alone can still name a key of the agent.
            Err(_) => match self.keys.file(&beside(&identity.path, ".pub")).await {
                Ok(key) if matches!(key.file.private, Private::Elsewhere) => key.file.public.clone(),
                _ => None,
            },
        };
        ReadIdentity { identity, file, public }
    }

    /// Adds a CertificateFile. Its private key may be in the agent or in one of the files.
    async fn explicit(&mut self, path: &Path, files: &[ReadIdentity<'_>], held: &AgentKeys) {
        let certificate = match self.keys.certificate(path).await {
            Ok(certificate) => certificate,
            Err(fault) => return self.unusable(path, &fault),
        };
        let key = certificate.public_key();
        let file = files.iter().find(|file| {
            let is_private =
                file.file.as_ref().is_ok_and(|key| !matches!(key.file.private, Private::Elsewhere));
            is_private && file.public.as_ref().is_some_and(|public| public.key_data() == key)
        });
        let with = held
            .signer(&PublicKey::new(key.clone(), ""))
            .or_else(|| file.and_then(|file| file.file.as_ref().ok()).map(|key| With::File(Arc::clone(key))));
        let source = Source::File(path.to_owned());
        match with {
            Some(with) => {
                if let Some(candidate) = self.certificate(certificate, with, source) {
                    self.certificates.push(candidate);
                }
            }
            None => {
                let why = "neither the agent nor an IdentityFile has the private half of this certificate";
                let offer = Offer::Certificate(certificate);
                self.steps.push(Attempt {
                    what: offer.what(),
                    source,
                    answer: Answer::NotOffered(why.to_owned()),
                });
            }
        }
    }

    /// Adds an IdentityFile, and the certificate beside it.
    async fn identity(&mut self, read: &ReadIdentity<'_>, held: &AgentKeys) {
        let path = &read.identity.path;
        let Some(public) = &read.public else {
            match &read.file {
                Ok(key) => {
                    let candidate = Candidate {
                        offer: None,
                        with: With::File(Arc::clone(key)),
                        source: Source::File(path.clone()),
                        doubt: None,
                    };
                    self.files.push((read.identity.named, candidate));
                }
                Err(fault) => self.missed(read.identity, fault),
            }
            return;
        };
        let signer = || {
            let of_agent = held.signer(public);
            of_agent.or_else(|| {
                let key = read.file.as_ref().ok()?;
                (!matches!(key.file.private, Private::Elsewhere)).then(|| With::File(Arc::clone(key)))
            })
        };
        let (Some(with), Some(with_certificate)) = (signer(), signer()) else {
            match &read.file {
                Ok(_) => self.missed(
                    read.identity,
                    &KeyFault { path: path.clone(), fault: KeyFileFault::NoPrivateHalf },
                ),
                Err(fault) => self.missed(read.identity, fault),
            }
            return;
        };
        let certificate_path = beside(path, "-cert.pub");
        let certificate = match self.keys.certificate(&certificate_path).await {
            Ok(certificate) if certificate.public_key() == public.key_data() => {
                self.certificate(certificate, with_certificate, Source::File(certificate_path))
            }
            Ok(certificate) => {
                let why =
                    format!("the certificate is not for the key {}", escaped(&path.to_string_lossy(), 200));
                let (what, source) = (Offer::Certificate(certificate).what(), Source::File(certificate_path));
                self.steps.push(Attempt { what, source, answer: Answer::NotOffered(why) });
                None
            }
            Err(KeyFault { fault: KeyFileFault::Missing, .. }) => None,
            Err(fault) => {
                self.unusable(&certificate_path, &fault);
                None
            }
        };
        let source = match &with {
            With::File(_) => Source::File(path.clone()),
            With::Agent { agent, key } => Source::Agent {
                socket: agent.path().to_owned(),
                comment: held.comment(key),
                named_by: Some(path.clone()),
            },
        };
        let from_agent = matches!(with, With::Agent { .. });
        let key = self.key(public.clone(), with, source);
        for candidate in certificate.into_iter().chain(key) {
            if from_agent {
                self.agent.push(candidate);
            } else {
                self.files.push((read.identity.named, candidate));
            }
        }
    }

    /// Adds the agent's keys that the configuration does not name.
    fn rest_of(&mut self, held: &AgentKeys) {
        let Some(agent) = &held.agent else { return };
        for AgentKey { key, comment } in held.keys.iter() {
            let with = With::Agent { agent: Arc::clone(agent), key: key.clone() };
            let source =
                Source::Agent { socket: agent.path().to_owned(), comment: comment.clone(), named_by: None };
            let candidate = if key.algorithm().contains("-cert-v0") {
                match certificate::from_blob(key.blob()) {
                    Some(certificate) => self.certificate(Arc::new(certificate), with, source),
                    None => None,
                }
            } else {
                match russh::keys::key::parse_public_key(key.blob()) {
                    Ok(public) if !matches!(public.algorithm(), Algorithm::Other(_)) => {
                        self.key(public, with, source)
                    }
                    _ => {
                        let what = What::Key {
                            algorithm: key.algorithm().to_owned(),
                            fingerprint: key.fingerprint(),
                        };
                        let answer = Answer::NotOffered("its kind is not known here".to_owned());
                        self.steps.push(Attempt { what, source, answer });
                        None
                    }
                }
            };
            self.others.extend(candidate);
        }
    }

    fn key(&mut self, key: PublicKey, with: With, source: Source) -> Option<Candidate> {
        let offer = Offer::Key(key);
        if offer.is_dsa() {
            let answer = Answer::NotOffered("servers accept no DSA keys any more".to_owned());
            self.steps.push(Attempt { what: offer.what(), source, answer });
            return None;
        }
        let Offer::Key(key) = &offer else { return None };
        let blob = key.to_bytes().ok()?;
        self.seen.insert(blob).then_some(Candidate { offer: Some(offer), with, source, doubt: None })
    }

    fn certificate(
        &mut self,
        certificate: Arc<Certificate>,
        with: With,
        source: Source,
    ) -> Option<Candidate> {
        let outlook = certificate::outlook(&certificate, self.user, self.now);
        let blob = certificate.to_bytes().ok()?;
        let offer = Offer::Certificate(certificate);
        if !self.seen.insert(blob) {
            return None;
        }
        let doubt = match outlook {
            CertificateOutlook::Good => None,
            CertificateOutlook::Doubtful(why) => Some(why),
            CertificateOutlook::Hopeless(why) => {
                self.steps.push(Attempt { what: offer.what(), source, answer: Answer::NotOffered(why) });
                return None;
            }
        };
        Some(Candidate { offer: Some(offer), with, source, doubt })
    }

    /// Notes a key file that cannot be used. A default file that does not exist is not noted.
    fn missed(&mut self, identity: &Identity, fault: &KeyFault) {
        let is_expected = identity.named == Named::ByDefault
            && matches!(
                fault.fault,
                KeyFileFault::Missing | KeyFileFault::Fido | KeyFileFault::NoPrivateHalf
            );
        if !is_expected {
            self.unusable(&identity.path, fault);
        }
    }

    fn unusable(&mut self, path: &Path, fault: &KeyFault) {
        let answer = Answer::Unusable { why: fault.fault.to_string(), advice: fault.advice() };
        self.steps.push(Attempt { what: What::File, source: Source::File(path.to_owned()), answer });
    }
}

impl AgentKeys {
    /// Returns the agent as signer for this key, if the agent holds the key.
    fn signer(&self, public: &PublicKey) -> Option<With> {
        let agent = self.agent.as_ref()?;
        let blob = public.to_bytes().ok()?;
        let held = self.keys.iter().find(|held| held.key.blob() == blob)?;
        Some(With::Agent { agent: Arc::clone(agent), key: held.key.clone() })
    }

    fn comment(&self, key: &Blob) -> String {
        self.keys.iter().find(|held| held.key == *key).map(|held| held.comment.clone()).unwrap_or_default()
    }
}

/// Appends `suffix` to `path`. If `path` is a public key file, appends to the path of its private key.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let text = path.as_os_str().to_string_lossy();
    let mut name = match text.strip_suffix(".pub") {
        Some(private) => private.into(),
        None => path.as_os_str().to_owned(),
    };
    name.push(suffix);
    name.into()
}
