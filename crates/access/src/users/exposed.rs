//! Who, beside the process that reads a file of users, could have written it, or knows what is in it. Commands, the check and the
//! server ask the same, of the very file that was read.

/// Permission bits of other users than the owner.
const OF_OTHERS: u32 = 0o077;

/// Users with smaller numbers are of the system: as one of them a server runs.
pub const FIRST_PERSON: u32 = 1000;

/// Why a file is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposed {
    /// Its owner is a person who is neither root nor the one that reads it, and could have written any role into it.
    Foreign { owner: u32, mode: u32 },
    /// Others than its owner can use it.
    Open { mode: u32 },
}

impl Exposed {
    /// Judges a file by its owner and mode. `own` is the number of the user who reads it: root may use the file of a user of the
    /// system too, as which a server runs.
    pub fn of(owner: u32, mode: u32, own: u32) -> Option<Self> {
        let mode = mode & 0o7777;
        let is_of_server = own == 0 && owner < FIRST_PERSON;
        if owner != own && owner != 0 && !is_of_server {
            return Some(Self::Foreign { owner, mode });
        }
        (mode & OF_OTHERS != 0).then_some(Self::Open { mode })
    }

    /// The reason, behind the name of the file. `name` is the name of its owner, if that is known.
    pub fn why(self, name: Option<&str>) -> String {
        match self {
            Self::Foreign { owner, mode } => {
                let owner = name.map_or_else(|| format!("user {owner}"), str::to_owned);
                format!(
                    "belongs to {owner} (mode {mode:04o}), who could have written any key and any role into it"
                )
            }
            Self::Open { mode } => format!("has mode {mode:04o}: others than its owner can use it"),
        }
    }

    /// What mends it. `file` is the file in the words of a shell.
    pub fn remedy(self, file: &str, own: u32) -> String {
        match self {
            Self::Foreign { .. } => format!("chown {own} {file}, if you know who wrote it"),
            Self::Open { mode } if mode & 0o022 != 0 => format!("chmod 600 {file}, if you know who wrote it"),
            Self::Open { .. } => format!("chmod 600 {file}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_root_of_the_reader_or_of_a_server_and_closed_to_others() {
        let (server, ann, eve) = (105, 1000, 1001);
        for (owner, own) in [(0, 0), (0, ann), (0, server), (ann, ann), (server, server), (server, 0)] {
            assert_eq!(Exposed::of(owner, 0o100_600, own), None, "{owner} {own}");
            for mode in [0o640, 0o604, 0o602, 0o610, 0o644] {
                assert_eq!(Exposed::of(owner, 0o100_000 | mode, own), Some(Exposed::Open { mode }));
            }
        }
        for (owner, own) in [(ann, 0), (eve, ann), (server, ann), (ann, server)] {
            let foreign = Exposed::of(owner, 0o100_600, own);
            assert_eq!(foreign, Some(Exposed::Foreign { owner, mode: 0o600 }), "{owner} {own}");
        }
    }
}
