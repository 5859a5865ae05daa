//! The side of the server, for any mechanism: takes what the client sends, says what to do next. What only the program around
//! it has, such as credentials or a GSSAPI context, it asks for by a [`Step`].

use super::bearer::{self, BearerError};
use super::credential::Credential;
use super::gs2::{BindingRefusal, Channel, Header, PlusOffer, Variant, bindings};
use super::krb5::{self, Krb5Refusal};
use super::prepare::prepare;
use super::saslname::{self, NameError};
use super::scram::{ClientFirst, Exchange, ScramError};
use crate::identity::{ChannelBinding, Factor, Factors, Identity, Mechanism};
use zeroize::Zeroizing;

/// What a server offers on a connection.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Its mechanisms, the best one first.
    pub mechanisms: Vec<Mechanism>,
    /// Channel bindings of the connection.
    pub channel: Channel,
    /// Name that the certificate of the client has proved, for EXTERNAL.
    pub external: Option<String>,
}

impl Offer {
    fn plus(&self, plus: Mechanism) -> PlusOffer {
        if self.mechanisms.contains(&plus) { PlusOffer::Offered } else { PlusOffer::NotOffered }
    }
}

/// Why a log-in fails, for the log: the client learns nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the mechanism \"{0}\" is not offered")]
    NotOffered(String),
    #[error("the client gave up")]
    Cancelled,
    #[error("the client sends what is no Base64")]
    NotBase64,
    #[error("the client sends more than the mechanism has")]
    Unexpected,
    #[error(transparent)]
    Binding(#[from] BindingRefusal),
    #[error(transparent)]
    Scram(#[from] ScramError),
    #[error(transparent)]
    Krb5(#[from] Krb5Refusal),
    #[error(transparent)]
    Bearer(#[from] BearerError),
    #[error("the token is not known")]
    UnknownToken,
    #[error("the token {0} has ended")]
    EndedToken(String),
    #[error("the authorization identity {0}")]
    Authzid(NameError),
    #[error("\"{name}\" asks to act as \"{as_whom}\": each user may act as himself only")]
    ActAsOther { name: String, as_whom: String },
    #[error("there is no user of this name with a password")]
    UnknownUser,
    #[error("the system gives no random bytes")]
    NoRandom,
    #[error("GSSAPI: {0}")]
    Gssapi(String),
    /// Not for anything that the client has done.
    #[error("{0}")]
    NotJudged(String),
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Send this, and give the answer to [`Login::response`].
    Challenge(Vec<u8>),
    /// Give the credential of this user to [`Login::credential`].
    NeedsCredential(String),
    /// Give these to `gss_accept_sec_context`, and what it says to [`Login::context`].
    NeedsContext { token: Vec<u8>, application_data: Vec<u8> },
    /// Say to [`Login::token`] whose bearer token this is.
    NeedsToken(Zeroizing<String>),
    /// The client is this one.
    Done(Identity),
}

/// A log-in that has begun.
#[derive(Debug)]
pub struct Login {
    mechanism: Mechanism,
    offer: Offer,
    state: State,
}

#[derive(Debug)]
enum State {
    First,
    Scram(ClientFirst),
    Proof {
        name: String,
        exchange: Exchange,
        known: Known,
    },
    Context {
        header: Header,
    },
    /// The client has sent a token, to act as this one.
    Token(Option<String>),
    /// The client was told that its token is refused, and says that it has read that.
    Refused(Refusal),
    /// The client has answered all; it confirms the last message.
    Confirm(Identity),
    Ended,
}

/// Whether the credential is that of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

impl Login {
    /// Begins a log-in by the mechanism of this name.
    pub fn begin(name: &str, offer: &Offer) -> Result<Self, Refusal> {
        let offered = offer.mechanisms.iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(name));
        match offered {
            Some(mechanism) => Ok(Self { mechanism: *mechanism, offer: offer.clone(), state: State::First }),
            None => Err(Refusal::NotOffered(name.chars().take(20).collect())),
        }
    }

    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Takes a message of the client, decoded.
    pub fn response(&mut self, message: &[u8]) -> Result<Step, Refusal> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::First => self.first(message),
            State::Proof { name, exchange, known } => {
                let last = match (exchange.finish(message), known) {
                    (Ok(last), Known::Yes) => last,
                    (Err(ScramError::WrongProof), Known::No) | (Ok(_), Known::No) => {
                        return Err(Refusal::UnknownUser);
                    }
                    (Err(error), _) => return Err(error.into()),
                };
                let factors = Factors::default().with(Factor::Knowledge);
                self.state = State::Confirm(self.identity(name, factors));
                Ok(Step::Challenge(last.into_bytes()))
            }
            // Nothing is expected, and nothing that is sent could mean anything.
            State::Confirm(identity) if message.is_empty() => Ok(Step::Done(identity)),
            // It was refused, and no answer of the client changes that.
            State::Refused(why) => Err(why),
            _ => Err(Refusal::Unexpected),
        }
    }

    fn first(&mut self, message: &[u8]) -> Result<Step, Refusal> {
        match self.mechanism {
            Mechanism::External => {
                let name = self.offer.external.clone().ok_or(Refusal::Unexpected)?;
                let as_whom = match message {
                    b"" => None,
                    other => {
                        // RFC 4422 appendix A: any text but NUL, without the escapes of GS2.
                        let text =
                            std::str::from_utf8(other).map_err(|_| Refusal::Authzid(NameError::NotText));
                        let text = text?;
                        if text.len() > saslname::LONGEST {
                            return Err(Refusal::Authzid(NameError::TooLong));
                        }
                        if text.contains('\0') {
                            return Err(Refusal::Authzid(NameError::Forbidden));
                        }
                        Some(text.to_owned())
                    }
                };
                acts_as_himself(&name, as_whom.as_deref())?;
                Ok(Step::Done(self.identity(name, Factors::default().with(Factor::Possession))))
            }
            Mechanism::ScramSha256 | Mechanism::ScramSha256Plus => {
                let first = ClientFirst::parse(message)?;
                self.check_flag(&first.header, Mechanism::ScramSha256Plus)?;
                let as_whom = first.header.authzid.as_deref();
                let prepared = as_whom.and_then(|name| prepare(name).ok());
                acts_as_himself(&first.name, prepared.as_deref().or(as_whom))?;
                let name = first.name.clone();
                self.state = State::Scram(first);
                Ok(Step::NeedsCredential(name))
            }
            Mechanism::Gs2Krb5 | Mechanism::Gs2Krb5Plus => {
                let krb5::First { header, token } = krb5::First::parse(message)?;
                let bindings = self.check_flag(&header, Mechanism::Gs2Krb5Plus)?;
                let application_data = krb5::application_data(&header, bindings.as_deref());
                self.state = State::Context { header };
                Ok(Step::NeedsContext { token, application_data })
            }
            Mechanism::Bearer => {
                let bearer::Message { authzid, token } = bearer::Message::parse(message)?;
                self.state = State::Token(authzid);
                Ok(Step::NeedsToken(token))
            }
            Mechanism::OneTimePassword => Err(Refusal::NotOffered(self.mechanism.name().to_owned())),
        }
    }

    /// Continues with the credential of the user: `Ok` if he is known, `Err` with one that looks like it. `nonce` must be
    /// random.
    pub fn credential(
        &mut self,
        credential: Result<&Credential, &Credential>,
        nonce: &str,
    ) -> Result<Step, Refusal> {
        let State::Scram(first) = std::mem::replace(&mut self.state, State::Ended) else {
            return Err(Refusal::Unexpected);
        };
        let bindings = self.check_flag(&first.header, Mechanism::ScramSha256Plus)?;
        let name = first.name.clone();
        let (credential, known) = match credential {
            Ok(credential) => (credential, Known::Yes),
            Err(credential) => (credential, Known::No),
        };
        let exchange = first.challenge(credential, nonce, bindings.as_deref());
        let challenge = exchange.challenge.clone().into_bytes();
        self.state = State::Proof { name, exchange, known };
        Ok(Step::Challenge(challenge))
    }

    /// Continues with a context that `gss_accept_sec_context` has completed: the whole principal, the flags of the context,
    /// and the token for the client.
    pub fn context(&mut self, principal: String, flags: u32, token: Vec<u8>) -> Result<Step, Refusal> {
        let State::Context { header } = std::mem::replace(&mut self.state, State::Ended) else {
            return Err(Refusal::Unexpected);
        };
        krb5::judge(flags)?;
        acts_as_principal(&principal, header.authzid.as_deref())?;
        self.state = State::Confirm(self.identity(principal, Factors::default().with(Factor::Possession)));
        Ok(Step::Challenge(token))
    }

    /// Continues with the name of the token, or why it is refused.
    pub fn token(&mut self, name: Result<String, Refusal>) -> Result<Step, Refusal> {
        let State::Token(authzid) = std::mem::replace(&mut self.state, State::Ended) else {
            return Err(Refusal::Unexpected);
        };
        let judged = name.and_then(|name| acts_as_himself(&name, authzid.as_deref()).map(|()| name));
        match judged {
            Ok(name) => Ok(Step::Done(self.identity(name, Factors::default().with(Factor::Possession)))),
            Err(why) => {
                self.state = State::Refused(why);
                Ok(Step::Challenge(bearer::REFUSED.as_bytes().to_vec()))
            }
        }
    }

    fn check_flag(&self, header: &Header, plus: Mechanism) -> Result<Option<Vec<u8>>, Refusal> {
        let variant = if self.mechanism == plus { Variant::Plus } else { Variant::Plain };
        let used = bindings(&header.flag, variant, self.offer.plus(plus), &self.offer.channel)?;
        Ok(used.map(<[u8]>::to_vec))
    }

    fn identity(&self, name: String, factors: Factors) -> Identity {
        let channel = match self.mechanism {
            Mechanism::External | Mechanism::ScramSha256Plus | Mechanism::Gs2Krb5Plus => {
                ChannelBinding::Bound
            }
            _ => ChannelBinding::Unbound,
        };
        Identity { name, mechanism: self.mechanism, factors, channel }
    }
}

fn acts_as_himself(name: &str, as_whom: Option<&str>) -> Result<(), Refusal> {
    match as_whom {
        // RFC 4422: an empty authorization identity is that of the credentials.
        Some("") => Ok(()),
        Some(other) if other != name => {
            Err(Refusal::ActAsOther { name: name.to_owned(), as_whom: other.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Programs send the name without its realm too. The identity is the whole principal all the same.
fn acts_as_principal(principal: &str, as_whom: Option<&str>) -> Result<(), Refusal> {
    let name = principal.rsplit_once('@').map_or(principal, |(name, _)| name);
    match as_whom {
        Some(short) if short == name => Ok(()),
        other => acts_as_himself(principal, other),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::super::gs2::{BindingFlag, TLS_EXPORTER};
    use super::super::scram::Client;
    use super::*;

    fn offer() -> Offer {
        let channel = Channel::default().with(TLS_EXPORTER, vec![9; 32]);
        let mechanisms = vec![
            Mechanism::External,
            Mechanism::Gs2Krb5Plus,
            Mechanism::ScramSha256Plus,
            Mechanism::Gs2Krb5,
            Mechanism::ScramSha256,
        ];
        Offer { mechanisms, channel, external: Some("ann.example".to_owned()) }
    }

    fn credential() -> Credential {
        Credential::derive("pencil", b"salt", NonZeroU32::new(4096).unwrap()).unwrap()
    }

    fn scram(
        mechanism: &str,
        authzid: Option<&str>,
        flag: BindingFlag,
        data: &[u8],
        known: bool,
    ) -> Result<Identity, Refusal> {
        let client = Client::new("ann", authzid, flag, data, "abc").unwrap();
        let mut login = Login::begin(mechanism, &offer())?;
        let Step::NeedsCredential(name) = login.response(client.first.as_bytes())? else { panic!() };
        assert_eq!(name, "ann");
        let credential = credential();
        let given = if known { Ok(&credential) } else { Err(&credential) };
        let Step::Challenge(challenge) = login.credential(given, "def")? else { panic!() };
        let awaiting = client.respond(&challenge, "pencil").unwrap();
        let Step::Challenge(last) = login.response(awaiting.last.as_bytes())? else { panic!() };
        awaiting.verify(&last).unwrap();
        let Step::Done(identity) = login.response(b"")? else { panic!() };
        assert_eq!(login.response(b"").unwrap_err(), Refusal::Unexpected, "it has ended");
        Ok(identity)
    }

    #[test]
    fn a_user_logs_in_with_bindings_and_without() {
        let uses = BindingFlag::Uses(TLS_EXPORTER.to_owned());
        let plus = scram("scram-sha-256-plus", Some("ann"), uses.clone(), &[9; 32], true).unwrap();
        assert_eq!((plus.name.as_str(), plus.channel), ("ann", ChannelBinding::Bound));
        assert_eq!((plus.mechanism, plus.factors.count()), (Mechanism::ScramSha256Plus, 1));
        let plain = scram("SCRAM-SHA-256", None, BindingFlag::Cannot, b"", true).unwrap();
        assert_eq!(plain.channel, ChannelBinding::Unbound);
        let relayed = scram("SCRAM-SHA-256-PLUS", None, uses.clone(), &[8; 32], true);
        assert_eq!(relayed, Err(Refusal::Scram(ScramError::OtherBindings)));
        let downgrade = scram("SCRAM-SHA-256", None, BindingFlag::NotOffered, b"", true);
        assert_eq!(downgrade, Err(Refusal::Binding(BindingRefusal::Downgrade)));
        let plain = scram("SCRAM-SHA-256", None, uses, &[9; 32], true);
        assert_eq!(plain, Err(Refusal::Binding(BindingRefusal::PlainWith)));
    }

    #[test]
    fn nobody_is_another_user_and_an_unknown_one_fails_at_the_end_even_with_the_right_proof() {
        let other = scram("SCRAM-SHA-256", Some("root"), BindingFlag::Cannot, b"", true);
        let expected = Refusal::ActAsOther { name: "ann".to_owned(), as_whom: "root".to_owned() };
        assert_eq!(other, Err(expected));
        let unknown = scram("SCRAM-SHA-256", None, BindingFlag::Cannot, b"", false);
        assert_eq!(unknown, Err(Refusal::UnknownUser));
    }

    #[test]
    fn a_token_logs_in_by_its_name_and_a_refused_one_learns_so_before_the_end() {
        let offer = Offer { mechanisms: vec![Mechanism::Bearer], ..Offer::default() };
        let begin = |message: &str| {
            let mut login = Login::begin("OAUTHBEARER", &offer).unwrap();
            let Step::NeedsToken(token) = login.response(message.as_bytes()).unwrap() else { panic!() };
            assert_eq!(*token, "abc");
            login
        };
        let as_ci = "n,a=ci,\x01auth=Bearer abc\x01\x01";
        let Ok(Step::Done(identity)) = begin(as_ci).token(Ok("ci".to_owned())) else { panic!() };
        assert_eq!((identity.name.as_str(), identity.channel), ("ci", ChannelBinding::Unbound));
        for (name, why) in [
            (Err(Refusal::UnknownToken), Refusal::UnknownToken),
            (
                Ok("other".to_owned()),
                Refusal::ActAsOther { name: "other".to_owned(), as_whom: "ci".to_owned() },
            ),
        ] {
            for answer in [&b"\x01"[..], b"", b"anything"] {
                let mut login = begin(as_ci);
                let Ok(Step::Challenge(told)) = login.token(name.clone()) else { panic!() };
                assert_eq!(told, bearer::REFUSED.as_bytes());
                assert_eq!(login.response(answer).unwrap_err(), why);
                assert_eq!(login.response(answer).unwrap_err(), Refusal::Unexpected, "it has ended");
            }
        }
    }

    #[test]
    fn external_is_the_name_of_the_certificate() {
        let external = |message: &[u8]| {
            let mut login = Login::begin("EXTERNAL", &offer()).unwrap();
            match login.response(message) {
                Ok(Step::Done(identity)) => Ok((identity.name, identity.channel)),
                Ok(other) => panic!("{other:?}"),
                Err(refusal) => Err(refusal),
            }
        };
        let ann = ("ann.example".to_owned(), ChannelBinding::Bound);
        assert_eq!(external(b""), Ok(ann.clone()));
        assert_eq!(external(b"ann.example"), Ok(ann));
        assert!(matches!(external(b"root"), Err(Refusal::ActAsOther { .. })));
        assert_eq!(external(b"a\0b"), Err(Refusal::Authzid(NameError::Forbidden)));
        assert_eq!(external(b"\xff"), Err(Refusal::Authzid(NameError::NotText)));
        assert_eq!(external(&[b'a'; 70_000]), Err(Refusal::Authzid(NameError::TooLong)));
        let nothing = Login::begin("PLAIN", &offer()).unwrap_err();
        assert_eq!(nothing, Refusal::NotOffered("PLAIN".to_owned()));
    }

    #[test]
    fn a_kerberos_context_counts_only_if_it_is_bound() {
        let krb5 = |mechanism: &str, message: &[u8], flags| {
            let mut login = Login::begin(mechanism, &offer())?;
            let Step::NeedsContext { application_data, .. } = login.response(message)? else { panic!() };
            let Step::Challenge(token) = login.context("ann@EXAMPLE".to_owned(), flags, vec![5])? else {
                panic!()
            };
            assert_eq!(token, [5]);
            let Step::Done(identity) = login.response(b"")? else { panic!() };
            Ok((identity.name, identity.channel, application_data))
        };
        let all = krb5::MUTUAL | krb5::CHANNEL_BOUND;
        let plain = krb5("GS2-KRB5", b"n,a=ann,token", all).unwrap();
        assert_eq!(plain, ("ann@EXAMPLE".to_owned(), ChannelBinding::Unbound, b"n,a=ann,".to_vec()));
        let (_, channel, data) = krb5("GS2-KRB5-PLUS", b"p=tls-exporter,,token", all).unwrap();
        assert_eq!(channel, ChannelBinding::Bound);
        assert_eq!(data, [&b"p=tls-exporter,,"[..], &[9; 32]].concat());
        for (mechanism, message, flags, refusal) in [
            ("GS2-KRB5", &b"n,,t"[..], krb5::MUTUAL, Refusal::Krb5(Krb5Refusal::NotBound)),
            ("GS2-KRB5", b"y,,t", all, Refusal::Binding(BindingRefusal::Downgrade)),
            ("GS2-KRB5", b"F,n,,t", all, Refusal::Krb5(Krb5Refusal::NonStandard)),
            ("GS2-KRB5-PLUS", b"n,,t", all, Refusal::Binding(BindingRefusal::PlusWithout)),
        ] {
            assert_eq!(krb5(mechanism, message, flags), Err(refusal));
        }
        let root = krb5("GS2-KRB5", b"n,a=root,t", all);
        assert!(matches!(root, Err(Refusal::ActAsOther { .. })), "{root:?}");
        let realm = krb5("GS2-KRB5", b"n,a=ann@OTHER,t", all);
        assert!(matches!(realm, Err(Refusal::ActAsOther { .. })), "{realm:?}");
    }
}
