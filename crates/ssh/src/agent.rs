//! A client of ssh-agent (draft-ietf-sshm-ssh-agent). All hosts share a few connections to an agent. A signature for
//! which a person must touch a key or confirm is requested only after the one before it has finished.

mod signature;
mod wire;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hosts::ssh::key::{Fingerprint, PublicKey};
use russh::keys::agent::AgentSessionBinding;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::timeout;

use text::shell;
use text::terminal::escaped;

#[derive(Debug, Clone)]
pub struct AgentLimits {
    pub connections: usize,
    /// Timeout to connect and to list the keys.
    pub list: Duration,
    /// Timeout of one signature. It includes the time in which a person touches a key or confirms.
    pub sign: Duration,
    /// Maximum age of a list of keys, before the agent is asked for a new one.
    pub fresh: Duration,
    /// Time limit for an agent without a person: a signature that takes longer has waited for a person.
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

#[derive(Debug, Clone)]
pub(crate) struct AgentKey {
    pub(crate) key: PublicKey,
    /// Comment of the key, safe to print on a terminal.
    pub(crate) comment: String,
}

/// Failure of a request to an agent.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum AgentFault {
    /// The socket does not exist, or no agent listens on it.
    #[error("no agent answers at {}: {why}", shell::path(path))]
    Gone { path: PathBuf, why: String },
    /// The agent did not answer in time.
    #[error("the agent at {} did not answer within {} s", shell::path(path), .after.as_secs_f32())]
    Silent { path: PathBuf, after: Duration },
    /// The answer does not follow the agent protocol.
    #[error("the agent at {} sent a malformed answer ({what})", shell::path(path))]
    Garbage { path: PathBuf, what: &'static str },
    #[error("the agent at {} refused to list its keys", shell::path(path))]
    RefusedToList { path: PathBuf },
    /// The agent refused at once to sign.
    #[error("the agent refused to sign with this key")]
    RefusedToSign,
    /// The agent refused to sign after a delay, in which a person may have been asked.
    #[error("the agent did not sign with this key: it was not confirmed, or not touched in time")]
    Declined,
    /// The agent's answer is not a signature of this key over the requested data.
    #[error("the agent made a wrong signature with this key")]
    WrongSignature,
    /// The agent signed with SHA-1, although another algorithm was requested.
    #[error("the agent signs only with {0}, which servers refuse")]
    OtherAlgorithm(String),
}

impl AgentFault {
    /// Returns advice for the user who sees this failure.
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

/// An ssh-agent. Tasks that ask for the list of keys at the same time share one request.
pub(crate) struct Agent {
    path: PathBuf,
    limits: AgentLimits,
    places: Semaphore,
    idle: Mutex<Vec<UnixStream>>,
    listed: AsyncMutex<Option<(Instant, Listed)>>,
    manners: Mutex<HashMap<Fingerprint, Arc<AsyncMutex<AgentBehaviour>>>>,
}

type Listed = Result<Arc<[AgentKey]>, AgentFault>;

/// Behaviour of one key of an agent, learnt from the first signature of the key. That signature runs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentBehaviour {
    Unknown,
    /// The agent signs at once, many requests at a time, over any connection.
    Machine,
    /// The agent signs only over a connection that is bound to the host (`ssh-add -h`).
    Bound,
    /// A person must touch the key or confirm each signature.
    Person,
    /// A person was asked and refused: the key is not used again.
    Declined,
}

pub(crate) struct SignRequest<'a> {
    /// Key or certificate, as the agent listed it.
    pub(crate) key: &'a PublicKey,
    /// Signature algorithm, such as `rsa-sha2-512`.
    pub(crate) algorithm: &'a str,
    pub(crate) data: &'a [u8],
    /// Session that a new connection to the agent is bound to, for keys that the agent restricts to hosts.
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

    /// Returns the keys of the agent, in the order of the agent.
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
                        comment: escaped(&comment, 80),
                    };
                    keys.into_iter().map(key).collect()
                })
                .map_err(|what| self.garbage(what)),
            wire::Answer::Failure => Err(AgentFault::RefusedToList { path: self.path.clone() }),
            _ => Err(self.garbage("not a list of keys")),
        }
    }

    /// Returns the signature blob (RFC 4253 section 6.6).
    pub(crate) async fn sign(&self, request: SignRequest<'_>) -> Result<Vec<u8>, AgentFault> {
        let manner = {
            let mut manners = self.manners.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(AsyncMutex::new(AgentBehaviour::Unknown));
            Arc::clone(manners.entry(request.key.fingerprint()).or_insert_with(fresh))
        };
        let mut manner = manner.lock_owned().await;
        let known = *manner;
        match known {
            AgentBehaviour::Declined => return Err(AgentFault::Declined),
            AgentBehaviour::Machine | AgentBehaviour::Bound => {
                drop(manner);
                let binding = if known == AgentBehaviour::Bound { request.binding } else { None };
                return self.sign_over(&request, binding).await;
            }
            AgentBehaviour::Unknown | AgentBehaviour::Person => {}
        }
        let began = Instant::now();
        let mut result = self.sign_over(&request, None).await;
        let waited = began.elapsed() >= self.limits.person;
        let touch = request.key.algorithm().starts_with("sk-");
        *manner = if touch || waited { AgentBehaviour::Person } else { AgentBehaviour::Machine };
        match result {
            Err(AgentFault::RefusedToSign) if waited => {
                *manner = AgentBehaviour::Declined;
                return Err(AgentFault::Declined);
            }
            Err(AgentFault::Silent { .. }) => *manner = AgentBehaviour::Unknown,
            // The agent refuses a key that is restricted to hosts if the connection is bound to no host.
            Err(AgentFault::RefusedToSign) if request.binding.is_some() => {
                result = self.sign_over(&request, request.binding).await;
                *manner = match result {
                    Ok(_) if touch => AgentBehaviour::Person,
                    Ok(_) => AgentBehaviour::Bound,
                    Err(_) => AgentBehaviour::Unknown,
                };
            }
            Err(_) => *manner = AgentBehaviour::Unknown,
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
                // Without this check, the server would refuse the log-in without a reason.
                if signature::is_wrong(request.key, request.data, &blob) {
                    return Err(AgentFault::WrongSignature);
                }
                Ok(blob)
            }
            wire::Answer::Signature(Ok((algorithm, _))) => {
                Err(AgentFault::OtherAlgorithm(escaped(&algorithm, 64)))
            }
            wire::Answer::Signature(Err(what)) => Err(self.garbage(what)),
            wire::Answer::Failure => Err(AgentFault::RefusedToSign),
            _ => Err(self.garbage("not a signature")),
        }
    }

    /// Sends one request and returns its answer. If an idle connection has broken, the function opens a new one.
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
        // An agent that does not support binding answers with a failure; the request follows all the same.
        timeout(self.limits.list, talk(&mut stream, &wire::bind_request(binding)))
            .await
            .map_err(|_| self.silent(self.limits.list))?
            .map_err(|error| self.trouble(&error))?;
        timeout(limit, talk(&mut stream, message))
            .await
            .map_err(|_| self.silent(limit))?
            .map_err(|error| self.trouble(&error))
    }

    /// Sends a request over `stream`. After a success, the connection becomes idle again.
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

    /// Connects to the agent. While the queue of the agent is full (EAGAIN), the function retries until the timeout.
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
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::PermissionDenied => "it belongs to another user".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "it closed the connection".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Sends a message and reads one answer of limited length.
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
