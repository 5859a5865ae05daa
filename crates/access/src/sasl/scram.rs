//! SCRAM-SHA-256 and -PLUS (RFC 5802, RFC 7677) for both sides. Nonces are passed in.
//!
//! The server: [`ClientFirst::parse`], [`ClientFirst::challenge`], [`Exchange::finish`]. The client: [`Client::new`],
//! [`Client::respond`], [`Awaiting::verify`].

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64ct::{Base64, Encoding};

use super::credential::{
    Credential, LEAST_ITERATIONS, hash, iterations, key_of, salt_of, salted_password, sign,
};
use super::gs2::{BindingFlag, Header, HeaderError, TokenForm};
use super::prepare::{PrepareError, prepare};
use super::saslname::{self, NameError};

/// Longest message of either side in bytes.
const LONGEST: usize = 8192;

/// Longest nonce in bytes that one side may choose.
const LONGEST_NONCE: usize = 512;

/// Why an exchange fails. The other side learns no more than that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    #[error("a message has more than {LONGEST} bytes")]
    TooLong,
    #[error("a message is not UTF-8 text")]
    NotText,
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the GS2 header begins with F,")]
    NonStandard,
    #[error("the client asks for a mandatory extension (m=)")]
    MandatoryExtension,
    #[error("an attribute is missing, out of order or malformed: {0} was expected")]
    Attribute(&'static str),
    #[error("the user name {0}")]
    Name(NameError),
    #[error("the user name {0}")]
    UnpreparedName(PrepareError),
    #[error("a nonce is empty, too long or not printable")]
    Nonce,
    #[error("the nonce of the last message is not that of this exchange")]
    OtherNonce,
    #[error("the GS2 header or the channel bindings of the last message are not those of this connection")]
    OtherBindings,
    #[error("wrong password")]
    WrongProof,
    #[error("the server asks for {0} iterations, at least {LEAST_ITERATIONS} are safe")]
    TooFewIterations(u32),
    #[error("the password {0}")]
    Password(PrepareError),
    #[error("the server refuses: {0}")]
    Refused(String),
    #[error("the server does not know the password: it is an impostor")]
    WrongSignature,
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst {
    pub header: Header,
    /// Name of the user, prepared.
    pub name: String,
    nonce: String,
    /// The message without its header.
    bare: String,
}

impl ClientFirst {
    pub fn parse(message: &[u8]) -> Result<Self, ScramError> {
        if message.len() > LONGEST {
            return Err(ScramError::TooLong);
        }
        let (header, length) = Header::parse(message)?;
        if header.form == TokenForm::NonStandard {
            return Err(ScramError::NonStandard);
        }
        let bare = std::str::from_utf8(&message[length..]).map_err(|_| ScramError::NotText)?;
        if bare.starts_with("m=") {
            return Err(ScramError::MandatoryExtension);
        }
        let mut attributes = Attributes::new(bare);
        let name = attributes.value('n', "n=")?;
        let name = saslname::decode(name.as_bytes()).map_err(ScramError::Name)?;
        let name = prepare(&name).map_err(ScramError::UnpreparedName)?.into_owned();
        let nonce = nonce(attributes.value('r', "r=")?)?.to_owned();
        attributes.extensions()?;
        Ok(Self { header, name, nonce, bare: bare.to_owned() })
    }

    /// Makes the answer of the server. `bindings` are those that the client must have used; `nonce` must be random.
    pub fn challenge(self, credential: &Credential, nonce: &str, bindings: Option<&[u8]>) -> Exchange {
        let nonce = format!("{}{nonce}", self.nonce);
        let salt = Base64::encode_string(&credential.salt);
        let challenge = format!("r={nonce},s={salt},i={}", credential.iterations);
        let input = [self.header.encode().as_bytes(), bindings.unwrap_or_default()].concat();
        Exchange {
            before: format!("{},{challenge}", self.bare),
            challenge,
            nonce,
            input: Base64::encode_string(&input),
            credential: credential.clone(),
        }
    }
}

/// An exchange that waits for the proof of the client.
#[derive(Debug)]
pub struct Exchange {
    /// What the server sends.
    pub challenge: String,
    nonce: String,
    /// `c=` of the client's last message.
    input: String,
    /// The signed text before that message.
    before: String,
    credential: Credential,
}

impl Exchange {
    /// Decides. Returns the last message of the server, by which the client knows it.
    pub fn finish(self, message: &[u8]) -> Result<String, ScramError> {
        let text = text_of(message)?;
        // Base64 has no comma.
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Attribute("p="))?;
        let mut attributes = Attributes::new(without_proof);
        let input = attributes.value('c', "c=")?;
        let their_nonce = attributes.value('r', "r=")?;
        attributes.extensions()?;
        let proof = key_of(proof).ok_or(ScramError::Attribute("p="))?;
        if input != self.input {
            return Err(ScramError::OtherBindings);
        }
        if their_nonce != self.nonce {
            return Err(ScramError::OtherNonce);
        }
        let signed = format!("{},{without_proof}", self.before);
        let client_key = xor(proof, sign(&self.credential.stored_key, signed.as_bytes()));
        verify_slices_are_equal(&hash(&client_key), &self.credential.stored_key)
            .map_err(|_| ScramError::WrongProof)?;
        let signature = sign(&self.credential.server_key, signed.as_bytes());
        Ok(format!("v={}", Base64::encode_string(&signature)))
    }
}

/// A client that waits for the challenge.
#[derive(Debug)]
pub struct Client {
    /// The first message.
    pub first: String,
    nonce: String,
    input: String,
    bare: String,
}

impl Client {
    /// `bindings` are the data for a flag [`BindingFlag::Uses`]; `nonce` must be random.
    pub fn new(
        name: &str,
        authzid: Option<&str>,
        flag: BindingFlag,
        bindings: &[u8],
        own_nonce: &str,
    ) -> Result<Self, ScramError> {
        let name = &prepare(name).map_err(ScramError::UnpreparedName)?;
        nonce(own_nonce)?;
        let header = Header { form: TokenForm::Standard, flag, authzid: authzid.map(str::to_owned) }.encode();
        let bare = format!("n={},r={own_nonce}", saslname::encode(name));
        let input = Base64::encode_string(&[header.as_bytes(), bindings].concat());
        Ok(Self { first: format!("{header}{bare}"), nonce: own_nonce.to_owned(), input, bare })
    }

    /// Answers the challenge of the server. Computes for as long as the server's count of iterations says.
    pub fn respond(self, challenge: &[u8], password: &str) -> Result<Awaiting, ScramError> {
        let challenge = text_of(challenge)?;
        if challenge.starts_with("m=") {
            return Err(ScramError::MandatoryExtension);
        }
        if let Some(reason) = challenge.strip_prefix("e=") {
            return Err(ScramError::Refused(reason.to_owned()));
        }
        let mut attributes = Attributes::new(challenge);
        let both = attributes.value('r', "r=")?;
        let salt = salt_of(attributes.value('s', "s=")?).ok_or(ScramError::Attribute("s="))?;
        let count = iterations(attributes.value('i', "i=")?).ok_or(ScramError::Attribute("i="))?;
        attributes.extensions()?;
        let theirs = both.strip_prefix(&self.nonce).ok_or(ScramError::OtherNonce)?;
        nonce(theirs)?;
        if count.get() < LEAST_ITERATIONS {
            return Err(ScramError::TooFewIterations(count.get()));
        }
        let salted = salted_password(password, &salt, count).map_err(ScramError::Password)?;
        let client_key = sign(&*salted, b"Client Key");
        let without_proof = format!("c={},r={both}", self.input);
        let signed = format!("{},{challenge},{without_proof}", self.bare);
        let proof = xor(client_key, sign(&hash(&client_key), signed.as_bytes()));
        let signature = sign(&sign(&*salted, b"Server Key"), signed.as_bytes());
        Ok(Awaiting { last: format!("{without_proof},p={}", Base64::encode_string(&proof)), signature })
    }
}

/// A client that waits for the proof of the server.
#[derive(Debug)]
pub struct Awaiting {
    /// The last message of the client.
    pub last: String,
    signature: [u8; 32],
}

impl Awaiting {
    pub fn verify(self, message: &[u8]) -> Result<(), ScramError> {
        let text = text_of(message)?;
        if let Some(reason) = text.strip_prefix("e=") {
            return Err(ScramError::Refused(reason.to_owned()));
        }
        let mut attributes = Attributes::new(text);
        let signature = key_of(attributes.value('v', "v=")?).ok_or(ScramError::Attribute("v="))?;
        attributes.extensions()?;
        verify_slices_are_equal(&signature, &self.signature).map_err(|_| ScramError::WrongSignature)
    }
}

/// The attributes of a message, in their fixed order.
struct Attributes<'a>(Option<&'a str>);

impl<'a> Attributes<'a> {
    fn new(message: &'a str) -> Self {
        Self(Some(message))
    }

    fn next(&mut self) -> Option<(char, &'a str)> {
        let rest = self.0?;
        let (one, rest) = match rest.split_once(',') {
            Some((one, rest)) => (one, Some(rest)),
            None => (rest, None),
        };
        self.0 = rest;
        let (name, value) = one.split_once('=')?;
        let mut name = name.chars();
        let letter = name.next().filter(char::is_ascii_alphabetic)?;
        (name.next().is_none() && !value.is_empty() && !value.contains('\0')).then_some((letter, value))
    }

    fn value(&mut self, letter: char, expected: &'static str) -> Result<&'a str, ScramError> {
        match self.next() {
            Some((found, value)) if found == letter => Ok(value),
            _ => Err(ScramError::Attribute(expected)),
        }
    }

    /// Reads over optional extensions, which mean nothing here (RFC 5802 section 5.1).
    fn extensions(&mut self) -> Result<(), ScramError> {
        while self.0.is_some() {
            match self.next() {
                Some(('m', _)) => return Err(ScramError::MandatoryExtension),
                Some(_) => {}
                None => return Err(ScramError::Attribute("an extension")),
            }
        }
        Ok(())
    }
}

fn text_of(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > LONGEST {
        return Err(ScramError::TooLong);
    }
    std::str::from_utf8(message).map_err(|_| ScramError::NotText)
}

/// `printable` of RFC 5802 section 7.
fn nonce(text: &str) -> Result<&str, ScramError> {
    let fits = |byte: u8| matches!(byte, 0x21..=0x2b | 0x2d..=0x7e);
    let is_nonce = (1..=LONGEST_NONCE).contains(&text.len()) && text.bytes().all(fits);
    if is_nonce { Ok(text) } else { Err(ScramError::Nonce) }
}

fn xor(mut one: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    one.iter_mut().zip(other).for_each(|(one, other)| *one ^= other);
    one
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::gs2::TLS_EXPORTER;
    use super::*;

    const CLIENT: &str = "rOprNGfwEbeRWgbNEkqO";
    const SERVER: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

    fn pencil() -> Credential {
        let salt = Base64::decode_vec("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Credential::derive("pencil", &salt, NonZeroU32::new(4096).unwrap()).unwrap()
    }

    fn client() -> Client {
        Client::new("user", None, BindingFlag::Cannot, b"", CLIENT).unwrap()
    }

    #[test]
    fn the_example_of_the_standard_is_what_both_sides_send() {
        let client = client();
        assert_eq!(client.first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let first = ClientFirst::parse(client.first.as_bytes()).unwrap();
        assert_eq!((first.name.as_str(), &first.header.flag), ("user", &BindingFlag::Cannot));
        let exchange = first.challenge(&pencil(), SERVER, None);
        assert_eq!(
            exchange.challenge,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let awaiting = client.respond(exchange.challenge.as_bytes(), "pencil").unwrap();
        assert_eq!(
            awaiting.last,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        let last = exchange.finish(awaiting.last.as_bytes()).unwrap();
        assert_eq!(last, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        awaiting.verify(last.as_bytes()).unwrap();
    }

    #[test]
    fn a_wrong_password_and_an_impostor_are_noticed() {
        let challenge = |credential: &Credential| {
            let client = client();
            let first = ClientFirst::parse(client.first.as_bytes()).unwrap();
            (client, first.challenge(credential, SERVER, None))
        };
        let (client, exchange) = challenge(&pencil());
        let wrong = client.respond(exchange.challenge.as_bytes(), "pencils").unwrap();
        assert_eq!(exchange.finish(wrong.last.as_bytes()), Err(ScramError::WrongProof));
        let (client, exchange) = challenge(&pencil());
        let awaiting = client.respond(exchange.challenge.as_bytes(), "pencil").unwrap();
        let mut other = pencil();
        other.server_key[0] ^= 1;
        let (_, impostor) = challenge(&other);
        let last = impostor.finish(awaiting.last.as_bytes()).unwrap();
        assert_eq!(awaiting.verify(last.as_bytes()), Err(ScramError::WrongSignature));
    }

    #[test]
    fn bindings_of_another_connection_are_refused() {
        let flag = BindingFlag::Uses(TLS_EXPORTER.to_owned());
        for (theirs, expected) in [([1; 32], Ok(())), ([2; 32], Err(ScramError::OtherBindings))] {
            let client = Client::new("user", None, flag.clone(), &[1; 32], CLIENT).unwrap();
            let first = ClientFirst::parse(client.first.as_bytes()).unwrap();
            let exchange = first.challenge(&pencil(), SERVER, Some(&theirs));
            let awaiting = client.respond(exchange.challenge.as_bytes(), "pencil").unwrap();
            assert_eq!(exchange.finish(awaiting.last.as_bytes()).map(drop), expected);
        }
    }

    #[test]
    fn broken_first_messages_are_refused_with_their_fault() {
        for (message, error) in [
            ("n,,n=user", ScramError::Attribute("r=")),
            ("n,,r=abc,n=user", ScramError::Attribute("n=")),
            ("n,,N=user,r=abc", ScramError::Attribute("n=")),
            ("n,,n=,r=abc", ScramError::Attribute("n=")),
            ("n,,n=user,r=", ScramError::Attribute("r=")),
            ("n,,n=user,r=a b", ScramError::Nonce),
            ("n,,n=user,r=abc,", ScramError::Attribute("an extension")),
            ("n,,n=user,r=abc,x", ScramError::Attribute("an extension")),
            ("n,,n=user,r=abc,xx=1", ScramError::Attribute("an extension")),
            ("n,,n=user,r=abc,m=1", ScramError::MandatoryExtension),
            ("n,,m=1,n=user,r=abc", ScramError::MandatoryExtension),
            ("n,,n=us=2cer,r=abc", ScramError::Name(NameError::BadEscape)),
            ("n,,n=a\u{7},r=abc", ScramError::UnpreparedName(PrepareError::Control)),
            ("n,,n=\u{1f600},r=abc", ScramError::UnpreparedName(PrepareError::Unassigned)),
            ("F,n,,n=user,r=abc", ScramError::NonStandard),
            ("", ScramError::Header(HeaderError::Cut)),
        ] {
            assert_eq!(ClientFirst::parse(message.as_bytes()), Err(error), "{message}");
        }
        assert!(ClientFirst::parse(b"n,,n=user,r=abc,x=1,y=a=b").is_ok(), "unknown extensions are optional");
        assert_eq!(ClientFirst::parse("n,,n=\u{ff41}nn,r=abc".as_bytes()).unwrap().name, "ann");
        assert_eq!(ClientFirst::parse(&vec![b'n'; 64 * 1024]), Err(ScramError::TooLong));
        assert_eq!(ClientFirst::parse(b"n,,n=\xff,r=abc"), Err(ScramError::NotText));
    }

    #[test]
    fn broken_challenges_are_refused_by_the_client() {
        for (challenge, error) in [
            ("r=other,s=YQ==,i=4096", ScramError::OtherNonce),
            ("r=rOprNGfwEbeRWgbNEkqO,s=YQ==,i=4096", ScramError::Nonce),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=YQ==,i=4095", ScramError::TooFewIterations(4095)),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=YQ==,i=4000000000", ScramError::Attribute("i=")),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=YQ=,i=4096", ScramError::Attribute("s=")),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", ScramError::Attribute("s=")),
            ("r=rOprNGfwEbeRWgbNEkqOx,i=4096,s=YQ==", ScramError::Attribute("s=")),
            ("m=x,r=rOprNGfwEbeRWgbNEkqOx,s=YQ==,i=4096", ScramError::MandatoryExtension),
            ("e=unknown-user", ScramError::Refused("unknown-user".to_owned())),
            ("", ScramError::Attribute("r=")),
        ] {
            let refused = client().respond(challenge.as_bytes(), "pencil").map(drop);
            assert_eq!(refused, Err(error), "{challenge}");
        }
    }
}
