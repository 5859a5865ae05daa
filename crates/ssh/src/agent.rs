//! A client of ssh-agent (draft-ietf-sshm-ssh-agent). A few connections serve all hosts; what a person must touch or
//! confirm is asked one at a time.

mod signature;
mod wire;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use logic::ssh::key::{Fingerprint, PublicKey};
use russh::keys::agent::AgentSessionBinding;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;

use crate::harmless::{harmless, shell_word};

/// Limits on an agent.
#[derive(Debug, Clone)]
pub struct AgentLimits {
    /// Connections at once.
    pub connections: usize,
    /// For connecting and for listing keys.
    pub list: Duration,
    /// For one signature, in which a person may be asked to touch a key or to confirm.
    pub sign: Duration,
    /// How old a list of keys may be.
    pub fresh: Duration,
    /// A signature that takes longer than this was waiting for a person.
    pub person: Duration,
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            connections: 4,
            list: Duration::from_secs(5),
            sign: Duration::from_secs(90),
            fresh: Duration::from_secs(10),
            person: Duration::from_millis(500),
        }
    }
}

/// A key that an agent holds.
#[derive(Debug, Clone)]
pub(crate) struct AgentKey {
    /// A plain key or a certificate.
    pub(crate) key: PublicKey,
    /// Harmless on a terminal.
    pub(crate) comment: String,
}

/// What was asked of an agent and did not come.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum AgentFault {
    /// The socket is not there, or nobody listens.
    #[error("no agent answers at {}: {why}", shell_word(path))]
    Gone {
        /// Its socket.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// It did not answer in time.
    #[error("the agent at {} did not answer within {} s", shell_word(path), .after.as_secs_f32())]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// What it answered is not the protocol of agents.
    #[error("the agent at {} answered with what is no answer of an agent ({what})", shell_word(path))]
    Garbage {
        /// Its socket.
        path: PathBuf,
        /// What was wrong.
        what: &'static str,
    },
    /// It did not list its keys.
    #[error("the agent at {} refused to list its keys", shell_word(path))]
    RefusedToList {
        /// Its socket.
        path: PathBuf,
    },
    /// It did not sign, at once.
    #[error("the agent refused to sign with this key")]
    RefusedToSign,
    /// It did not sign, after a while in which a person may have been asked.
    #[error("the agent did not sign with this key: it was not confirmed, or not touched in time")]
    Declined,
    /// What it gave is no signature of this key over what was to be signed.
    #[error("the agent made a wrong signature with this key")]
    WrongSignature,
    /// It signed with SHA-1 though asked not to.
    #[error("the agent signs only with {0}, which servers refuse")]
    OtherAlgorithm(String),
}

impl AgentFault {
    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Gone { .. } => {
                "start an agent (eval $(ssh-agent), ssh-add), or correct SSH_AUTH_SOCK or IdentityAgent".to_owned()
            }
            Self::Silent { .. } => "see whether ssh-add -l answers: the agent hangs, or has no descriptors left".to_owned(),
            Self::Garbage { .. } => "SSH_AUTH_SOCK or IdentityAgent names a socket that is not an agent's".to_owned(),
            Self::RefusedToList { .. } => "see what ssh-add -l says; a locked agent is opened with ssh-add -X".to_owned(),
            Self::RefusedToSign => {
                "is the agent locked (ssh-add -X), the key restricted to other hosts (ssh-add -h), its security key \
                 unplugged, or is there no program to ask for confirmation?"
                    .to_owned()
            }
            Self::Declined => "confirm in time, or touch the security key when it blinks".to_owned(),
            Self::WrongSignature => {
                "the fault is the agent's, not the server's: start it anew, or use the key file without it".to_owned()
            }
            Self::OtherAlgorithm(_) => "update the agent, or use an Ed25519 key".to_owned(),
        }
    }
}

/// An agent. What it holds is listed once for all who ask at the same time.
pub(crate) struct Agent {
    path: PathBuf,
    limits: AgentLimits,
    places: Semaphore,
    idle: Mutex<Vec<UnixStream>>,
    listed: AsyncMutex<Option<(Instant, Listed)>>,
    manners: Mutex<HashMap<Fingerprint, Arc<AsyncMutex<Manner>>>>,
}

type Listed = Result<Arc<[AgentKey]>, AgentFault>;

/// How a key of an agent behaves; learnt from its first signature, which runs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Unknown,
    /// It signs at once, for many at a time, over any connection.
    Machine,
    /// It signs only over a connection that is bound to the host (`ssh-add -h`).
    Bound,
    /// A person touches or confirms, each time.
    Person,
    /// A person was asked and did not agree: not asked again.
    Declined,
}

/// What to sign, and with what.
pub(crate) struct SignRequest<'a> {
    /// The key or certificate, as the agent listed it.
    pub(crate) key: &'a PublicKey,
    /// The signature's algorithm, such as `rsa-sha2-512`.
    pub(crate) algorithm: &'a str,
    /// The data.
    pub(crate) data: &'a [u8],
    /// Ties a connection to the host, for keys that are restricted to hosts.
    pub(crate) binding: Option<&'a AgentSessionBinding>,
}

impl Agent {
    pub(crate) fn new(path: PathBuf, limits: AgentLimits) -> Self {
        Self {
            places: Semaphore::new(limits.connections.max(1)),
            path,
            limits,
            idle: Mutex::default(),
            listed: AsyncMutex::default(),
            manners: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The keys it holds, in its order.
    pub(crate) async fn list(&self) -> Listed {
        let mut listed = self.listed.lock().await;
        if let Some((at, result)) = &*listed
            && at.elapsed() < self.limits.fresh
        {
            return result.clone();
        }
        let result = self.list_now().await;
        *listed = Some((Instant::now(), result.clone()));
        result
    }

    async fn list_now(&self) -> Listed {
        let answer = self.exchange(&wire::list_request(), None, self.limits.list).await?;
        match wire::Answer::of(&answer) {
            wire::Answer::Keys(keys) => keys
                .map(|keys| {
                    let key = |(key, comment): (PublicKey, String)| AgentKey {
                        key,
                        comment: harmless(&comment, 80),
                    };
                    keys.into_iter().map(key).collect()
                })
                .map_err(|what| self.garbage(what)),
            wire::Answer::Failure => Err(AgentFault::RefusedToList { path: self.path.clone() }),
            _ => Err(self.garbage("not a list of keys")),
        }
    }

    /// The signature's blob (RFC 4253 section 6.6).
    pub(crate) async fn sign(&self, request: SignRequest<'_>) -> Result<Vec<u8>, AgentFault> {
        let manner = {
            let mut manners = self.manners.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(AsyncMutex::new(Manner::Unknown));
            Arc::clone(manners.entry(request.key.fingerprint()).or_insert_with(fresh))
        };
        let mut manner = manner.lock_owned().await;
        let known = *manner;
        match known {
            Manner::Declined => return Err(AgentFault::Declined),
            Manner::Machine | Manner::Bound => {
                drop(manner);
                let binding = if known == Manner::Bound { request.binding } else { None };
                return self.sign_over(&request, binding).await;
            }
            Manner::Unknown | Manner::Person => {}
        }
        let began = Instant::now();
        let mut result = self.sign_over(&request, None).await;
        let waited = began.elapsed() >= self.limits.person;
        let touch = request.key.algorithm().starts_with("sk-");
        *manner = if touch || waited { Manner::Person } else { Manner::Machine };
        match result {
            Err(AgentFault::RefusedToSign) if waited => {
                *manner = Manner::Declined;
                return Err(AgentFault::Declined);
            }
            Err(AgentFault::Silent { .. }) => *manner = Manner::Unknown,
            // A key restricted to hosts is refused on a connection that is bound to none
            Err(AgentFault::RefusedToSign) if request.binding.is_some() => {
                result = self.sign_over(&request, request.binding).await;
                *manner = match result {
                    Ok(_) if touch => Manner::Person,
                    Ok(_) => Manner::Bound,
                    Err(_) => Manner::Unknown,
                };
            }
            Err(_) => *manner = Manner::Unknown,
            Ok(_) => {}
        }
        result
    }

    async fn sign_over(
        &self,
        request: &SignRequest<'_>,
        binding: Option<&AgentSessionBinding>,
    ) -> Result<Vec<u8>, AgentFault> {
        let message = wire::sign_request(request.key.blob(), request.data, request.algorithm);
        let answer = self.exchange(&message, binding, self.limits.sign).await?;
        match wire::Answer::of(&answer) {
            wire::Answer::Signature(Ok((algorithm, blob))) if algorithm == request.algorithm => {
                // The server would only say that it refuses.
                if signature::is_wrong(request.key, request.data, &blob) {
                    return Err(AgentFault::WrongSignature);
                }
                Ok(blob)
            }
            wire::Answer::Signature(Ok((algorithm, _))) => {
                Err(AgentFault::OtherAlgorithm(harmless(&algorithm, 64)))
            }
            wire::Answer::Signature(Err(what)) => Err(self.garbage(what)),
            wire::Answer::Failure => Err(AgentFault::RefusedToSign),
            _ => Err(self.garbage("not a signature")),
        }
    }

    /// One question and its answer. A connection that was idle may have died meanwhile: then a new one is made.
    async fn exchange(
        &self,
        message: &[u8],
        binding: Option<&AgentSessionBinding>,
        limit: Duration,
    ) -> Result<Vec<u8>, AgentFault> {
        let _place = self.places.acquire().await.map_err(|_| self.silent(limit))?;
        let idle = match binding {
            None => self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop(),
            Some(_) => None,
        };
        if let Some(stream) = idle {
            match self.ask(stream, message, limit).await {
                Err(AgentFault::Gone { .. }) => {}
                other => return other,
            }
        }
        let mut stream = self.connect().await?;
        let Some(binding) = binding else {
            return self.ask(stream, message, limit).await;
        };
        // An agent that does not know of binding says so, which is no reason to stop
        timeout(self.limits.list, talk(&mut stream, &wire::bind_request(binding)))
            .await
            .map_err(|_| self.silent(self.limits.list))?
            .map_err(|error| self.trouble(&error))?;
        timeout(limit, talk(&mut stream, message))
            .await
            .map_err(|_| self.silent(limit))?
            .map_err(|error| self.trouble(&error))
    }

    /// Asks over a connection that goes back to the idle ones, unless something was wrong with it.
    async fn ask(
        &self,
        mut stream: UnixStream,
        message: &[u8],
        limit: Duration,
    ) -> Result<Vec<u8>, AgentFault> {
        let answer = timeout(limit, talk(&mut stream, message))
            .await
            .map_err(|_| self.silent(limit))?
            .map_err(|error| self.trouble(&error))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(answer)
    }

    /// Connects. An agent whose queue is full says "try again", which is done for a while.
    async fn connect(&self) -> Result<UnixStream, AgentFault> {
        let began = Instant::now();
        loop {
            match UnixStream::connect(&self.path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if began.elapsed() > self.limits.list {
                        return Err(self.silent(self.limits.list));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                result => return result.map_err(|error| self.trouble(&error)),
            }
        }
    }

    fn trouble(&self, error: &io::Error) -> AgentFault {
        match error.kind() {
            io::ErrorKind::InvalidData => self.garbage("a message longer than any answer"),
            _ => AgentFault::Gone { path: self.path.clone(), why: said(error) },
        }
    }

    fn silent(&self, after: Duration) -> AgentFault {
        AgentFault::Silent { path: self.path.clone(), after }
    }

    fn garbage(&self, what: &'static str) -> AgentFault {
        AgentFault::Garbage { path: self.path.clone(), what }
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such socket".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens there any more".to_owned(),
        io::ErrorKind::PermissionDenied => "it belongs to somebody else".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "it closed the connection".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Sends a message and reads one, whose length is bounded.
async fn talk(stream: &mut UnixStream, message: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(message).await?;
    let length = stream.read_u32().await? as usize;
    if length == 0 || length > wire::LONGEST_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests;
