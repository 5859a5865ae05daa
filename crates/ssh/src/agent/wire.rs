//! Messages of the agent protocol (draft-ietf-sshm-ssh-agent section 3). The length of answers is limited.

use hosts::ssh::key::PublicKey;
use russh::keys::agent::AgentSessionBinding;

/// Maximum length of an answer, the same as in ssh-agent.
pub(super) const LONGEST_MESSAGE: usize = 256 * 1024;
/// Maximum number of keys in a list, the same as in ssh-agent.
const MOST_KEYS: usize = 2048;

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;
const EXTENSION: u8 = 27;
const EXTENSION_FAILURE: u8 = 28;

const RSA_SHA2_256: u32 = 2;
const RSA_SHA2_512: u32 = 4;

pub(super) enum Answer {
    /// The agent refuses the request.
    Failure,
    Keys(Result<Vec<(PublicKey, String)>, &'static str>),
    /// The algorithm of the signature, and the whole signature blob.
    Signature(Result<(String, Vec<u8>), &'static str>),
    Other,
}

impl Answer {
    pub(super) fn of(message: &[u8]) -> Self {
        match message.split_first() {
            Some((&(FAILURE | EXTENSION_FAILURE), _)) => Self::Failure,
            Some((&IDENTITIES_ANSWER, rest)) => Self::Keys(keys(rest)),
            Some((&SIGN_RESPONSE, rest)) => Self::Signature(signature(rest)),
            _ => Self::Other,
        }
    }
}

pub(super) fn list_request() -> Vec<u8> {
    framed(&[REQUEST_IDENTITIES])
}

/// Builds a request for a signature. `algorithm` chooses the hash of an RSA key.
pub(super) fn sign_request(key: &[u8], data: &[u8], algorithm: &str) -> Vec<u8> {
    let flags = match algorithm {
        "rsa-sha2-256" => RSA_SHA2_256,
        "rsa-sha2-512" => RSA_SHA2_512,
        _ => 0,
    };
    let mut message = vec![SIGN_REQUEST];
    push(&mut message, key);
    push(&mut message, data);
    message.extend_from_slice(&flags.to_be_bytes());
    framed(&message)
}

/// Builds a request that binds the connection to a host (OpenSSH's PROTOCOL.agent section 1).
pub(super) fn bind_request(binding: &AgentSessionBinding) -> Vec<u8> {
    let mut message = vec![EXTENSION];
    push(&mut message, b"session-bind@openssh.com");
    push(&mut message, binding.host_key());
    push(&mut message, binding.session_id().as_ref());
    push(&mut message, binding.signature());
    message.push(0); // not for forwarding
    framed(&message)
}

fn keys(rest: &[u8]) -> Result<Vec<(PublicKey, String)>, &'static str> {
    let (count, mut rest) = rest.split_first_chunk::<4>().ok_or("a list that is cut off")?;
    let count = u32::from_be_bytes(*count) as usize;
    if count > MOST_KEYS {
        return Err("a list of more than 2048 keys");
    }
    let mut keys = Vec::new();
    for _ in 0..count {
        let (blob, after) = take(rest).ok_or("a list that is cut off")?;
        let (comment, after) = take(after).ok_or("a list that is cut off")?;
        rest = after;
        // A key of an unknown type is left out; the other keys stay.
        if let Ok(key) = PublicKey::from_blob(blob) {
            keys.push((key, String::from_utf8_lossy(comment).into_owned()));
        }
    }
    Ok(keys)
}

fn signature(rest: &[u8]) -> Result<(String, Vec<u8>), &'static str> {
    let (blob, _) = take(rest).ok_or("a signature that is cut off")?;
    let (algorithm, _) = take(blob).ok_or("a signature without a name")?;
    let algorithm = std::str::from_utf8(algorithm).map_err(|_| "a signature without a name")?;
    Ok((algorithm.to_owned(), blob.to_vec()))
}

/// Splits `bytes` into the string at its start (RFC 4251 section 5) and the rest.
pub(super) fn take(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

fn push(message: &mut Vec<u8>, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("what we sign is shorter than a packet of SSH");
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(bytes);
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(message.len() + 4);
    push(&mut frame, message);
    frame
}
