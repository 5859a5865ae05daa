//! Keys that respond to challenges: which one of a user is asked what, and what a response changes.

use super::super::challenge::{Challenge, Exchange, Turn};
use super::super::token::{Kind, Moved, Refusal, Token};
use super::{Accepted, Ledger, Record, Unfit};

impl Ledger {
    /// What the key of a user is asked: of the key with this serial number, where a user has several.
    pub fn ask_key(&self, user: &str, serial: Option<u32>) -> Result<&Exchange, Refusal> {
        let keys: Vec<_> = self.keys(user).collect();
        let first = keys.first().ok_or(Refusal::NoToken)?.0.id.clone();
        let usable: Vec<_> =
            keys.iter().filter(|(token, _)| token.usable().is_ok()).map(|key| key.1).collect();
        match (&usable[..], serial) {
            ([], _) => Err(Refusal::Revoked { id: first }),
            ([one], None) => Ok(*one),
            (_, None) => Err(Refusal::WhichKey),
            (several, Some(serial)) => {
                let with = |wanted| several.iter().find(|exchange| exchange.serial == wanted).copied();
                with(Some(serial)).or_else(|| with(None)).ok_or(Refusal::OtherKey { serial })
            }
        }
    }

    /// The key of a user that is to respond to a challenge.
    pub fn asked_key(&self, user: &str, challenge: &Challenge) -> Result<(String, Exchange), Refusal> {
        let first = self.keys(user).next().ok_or(Refusal::NoToken)?.0.id.clone();
        let asked = self.keys(user).find(|(_, exchange)| exchange.challenge == *challenge);
        let (token, exchange) = asked.ok_or(Refusal::OldChallenge { id: first })?;
        token.usable()?;
        Ok((token.id.clone(), exchange.clone()))
    }

    /// Takes over that the key of a user has responded to what it was asked, if it was not asked anything else since.
    pub fn turn_key(
        &mut self,
        user: &str,
        id: &str,
        asked: &Exchange,
        turn: Turn,
        now: u64,
    ) -> Result<(Accepted, Record), Refusal> {
        let old = || Refusal::OldChallenge { id: id.to_owned() };
        let (token, exchange) = self.keys(user).find(|(token, _)| token.id == id).ok_or_else(old)?;
        token.usable()?;
        if exchange != asked {
            return Err(old());
        }
        Ok(self.accept(id.to_owned(), Moved::Responded(turn), now))
    }

    fn keys(&self, user: &str) -> impl Iterator<Item = (&Token, &Exchange)> {
        self.of_owner(user).filter_map(|token| match &token.kind {
            Kind::Challenge(exchange) => Some((token, exchange)),
            Kind::Yubico { .. } | Kind::Hotp { .. } | Kind::Totp { .. } => None,
        })
    }

    /// Whether a key can be told from those that a user has.
    pub(super) fn is_another_key(&self, token: &Token, owner: Option<&str>) -> Result<(), Unfit> {
        let (Kind::Challenge(new), Some(owner)) = (&token.kind, owner) else { return Ok(()) };
        let mut others = self.keys(owner).filter(|(other, _)| other.id != token.id);
        match others.find(|(_, exchange)| exchange.serial == new.serial) {
            Some((same, _)) => Err(Unfit::SameKey { id: same.id.clone(), owner: owner.to_owned() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::challenge::{Expected, Response, Slot};
    use super::super::super::seal::Key;
    use super::super::super::token::Standing;
    use super::*;

    fn challenge(number: u8) -> Challenge {
        Challenge::new([number; 63])
    }

    fn expected(number: u8) -> Expected {
        Expected::of(&Response::read(&format!("{number:040x}")).unwrap(), [number; 32])
    }

    fn key(id: &str, serial: Option<u32>, number: u8) -> Token {
        let exchange = Exchange {
            slot: Slot::Two,
            serial,
            challenge: challenge(number),
            expected: expected(number),
            next: challenge(number + 1),
        };
        let kind = Kind::Challenge(exchange);
        Token::new(id.to_owned(), Some("alice".to_owned()), kind, String::new(), 1)
    }

    fn ledger(keys: &[Token]) -> Ledger {
        let mut ledger = Ledger::new(Key::read(&Key::text(&[7; 32])).unwrap());
        for key in keys {
            let record = ledger.enrol(key).unwrap();
            ledger.take(record).unwrap();
        }
        ledger
    }

    fn asked(ledger: &Ledger, serial: Option<u32>) -> Result<Challenge, Refusal> {
        ledger.ask_key("alice", serial).map(|exchange| exchange.challenge.clone())
    }

    #[test]
    fn a_challenge_is_used_up_by_one_log_in_also_after_the_journal_is_read_again() {
        let mut first = ledger(&[key("a", None, 1)]);
        let (id, exchange) = first.asked_key("alice", &challenge(1)).unwrap();
        assert!(exchange.expected.is(&Response::read(&format!("{:040x}", 1)).unwrap()));
        let turn = || Turn { expected: expected(2), next: challenge(9) };
        let (accepted, record) = first.turn_key("alice", &id, &exchange, turn(), 5).unwrap();
        assert_eq!((&*accepted.id, accepted.change), ("a", 0), "other servers are not told");
        let old = Err(Refusal::OldChallenge { id: "a".to_owned() });
        assert_eq!(first.turn_key("alice", &id, &exchange, turn(), 5).map(drop), old);
        assert_eq!(first.asked_key("alice", &challenge(1)).map(drop), old);
        let mut second = ledger(&[key("a", None, 1)]);
        second.take(Record::read(&record.text()).unwrap()).unwrap();
        let mut third = ledger(&[]);
        first.records().for_each(|record| third.take(Record::read(&record.text()).unwrap()).unwrap());
        for ledger in [&first, &second, &third] {
            assert_eq!(asked(ledger, None), Ok(challenge(2)));
            assert_eq!(ledger.token("a").unwrap().used, Some(5));
            assert_eq!(ledger.changed_after(0).count(), 0);
        }
    }

    #[test]
    fn of_several_keys_the_serial_number_says_which_one_is_asked() {
        let alone = ledger(&[key("a", Some(7), 1)]);
        assert_eq!((asked(&alone, None), asked(&alone, Some(7))), (Ok(challenge(1)), Ok(challenge(1))));
        assert_eq!(asked(&alone, Some(8)), Err(Refusal::OtherKey { serial: 8 }));
        let mut both = ledger(&[key("a", Some(7), 1), key("b", None, 3)]);
        assert_eq!(asked(&both, None), Err(Refusal::WhichKey));
        assert_eq!((asked(&both, Some(7)), asked(&both, Some(8))), (Ok(challenge(1)), Ok(challenge(3))));
        for serial in [Some(7), None] {
            assert!(matches!(both.enrol(&key("c", serial, 5)), Err(Unfit::SameKey { .. })));
        }
        for id in ["a", "b"] {
            let record = both.set_standing(id, Standing::Revoked).unwrap();
            both.take(record).unwrap();
            let others = asked(&both, None);
            assert_eq!(others.is_ok(), id == "a", "the one that is left: {others:?}");
        }
        assert_eq!(asked(&both, None), Err(Refusal::Revoked { id: "a".to_owned() }));
        assert_eq!(
            both.asked_key("alice", &challenge(1)).map(drop),
            Err(Refusal::Revoked { id: "a".to_owned() })
        );
        assert_eq!(both.ask_key("bob", None).map(drop), Err(Refusal::NoToken));
    }

    #[test]
    fn a_key_makes_no_codes_and_other_servers_move_it_not() {
        let mut ledger = ledger(&[key("a", None, 1)]);
        assert_eq!(ledger.prove("alice", "123456", "n", 5).unwrap_err(), Refusal::UnknownToken);
        let turn = Moved::Responded(Turn { expected: expected(2), next: challenge(9) });
        assert!(ledger.follow("a", turn, 5).is_none());
        assert!(!ledger.token("a").unwrap().makes_otps());
    }
}
