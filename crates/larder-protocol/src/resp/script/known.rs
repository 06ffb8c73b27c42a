//! The hashes of known scripts, with the libraries that send them. A hash is of a text that is not repeated here; the
//! example `script_hash` prints the hashes of a script.
//!
//! To add a script, add its hashes here, and test it with its library (`tests/clients/test_redis_scripts.py`).

use super::hash::{ScriptHash, hash_of, hex};
use super::kind::Script;
use super::normal_form::normal_form;

/// The hashes of normal forms.
static NORMAL_FORMS: [(&str, Script); 25] = [
    // many programs
    ("1f4fc8e3e73a399a04d0e02cd3e7ea93dc92c840", Script::AddForMillis),
    // many programs
    ("bbe737762372b3d2b5ade578836f024c6412023e", Script::AddForMillis),
    // Laravel
    ("01b05c6bf89c7d7be88a5abac8291672d3648b37", Script::AddForSeconds),
    // redis_rate
    ("86edcb7ce808e9c2fecef936e47444937cd89946", Script::AllowRate),
    // redis_rate
    ("729693d09b7ae5ef9391fa7f7236508ff3ed4f18", Script::AllowRateAtMost),
    // rate-limiter-flexible
    ("494dba5cf4b7a72200133124adf32c1be1fef2b4", Script::ConsumePoints),
    // rate-limit-redis 3
    ("bc6a21c985a59f827dbdcdaff37cfb604c787e5f", Script::CountHit),
    // rate-limit-redis 4
    ("d88468c61859f4d442e2b3c512af68214add77de", Script::CountHit),
    // rate-limit-redis 5
    ("6d59b99c3768a6e5a5f5e299d5ca77b5e36028dc", Script::CountHitInWindow),
    // Laravel, cashews, redlock-py, redsync 4.0
    ("8f4d42e76cbb4fad0f45e575441b8a269ebc173c", Script::DeleteIfEqual),
    // redis-py
    ("afd2fb6b6447e9045285fbd50cc84e724cb9d093", Script::DeleteIfEqual),
    // node-redlock 4, node-redlock 5
    ("f1af5a77183dbea1e96b3317b81915bbe1cddf41", Script::DeleteIfEqual),
    // redis-py
    ("dd0ab0925c25bee271fee811f06f50189c4999c0", Script::ExpireMillisIfEqual),
    // redsync
    ("dc8ad6110baa7f60ed379b4db40a165d3c7e1ae1", Script::ExpireMillisIfEqual),
    // redsync
    ("9d30577306265133f7a60d8c1b0eaaadc2e23103", Script::ExpireOrLock),
    // many programs
    ("92501c2233520d90f49109a7bf0c4a1fc04a2a46", Script::ExpireSecondsIfEqual),
    // redis-py
    ("583e63ad36ecdcc0fee7ecd443fe454c2b74f645", Script::ExtendIfEqual),
    // django-redis
    ("79d5e0e8b55197c9609e386648162577d72f98c4", Script::Increment),
    // django-redis
    ("e12281e35186528ec1d011648980df657a8448e7", Script::IncrementExisting),
    // cashews
    ("69b9ad3f3012943047e2944e448fa95ee91efe05", Script::IncrementForMillis),
    // limits
    ("3309aa2aa576ffb36874012a7104ca3500ec48cc", Script::IncrementForSeconds),
    // node-redlock 4, node-redlock 5
    ("ba832946bba281636117c419173a0a18869940d1", Script::LockForMillis),
    // redsync
    ("a25a73664601b65b5292b1c7e273039f9669bb91", Script::ReleaseLock),
    // node-redlock 4, node-redlock 5
    ("edaf40bba63dc963db9b011986afb2dc2e45e427", Script::RelockForMillis),
    // rate-limit-redis 5
    ("71bdd822327c077631fb933dee4dcced2c1f1ed3", Script::ShowHits),
];

/// The hashes of texts, which `EVALSHA` may name without an earlier `EVAL`. In a cluster, a node forwards an `EVALSHA`
/// to the owner of the key, where the script may not have been loaded.
static TEXTS: [(&str, Script); 27] = [
    // Laravel
    ("a08c9c69b7c07ae2485190873b90d128a23e502d", Script::AddForSeconds),
    // redis_rate
    ("f52a5b566060d79fd321d695df55bc918339c4aa", Script::AllowRate),
    // redis_rate
    ("054143318f521948424aa25df61d7f7ba835a9d7", Script::AllowRateAtMost),
    // rate-limiter-flexible
    ("a1de965f42e177aa339706bd580f049065eca79a", Script::ConsumePoints),
    // rate-limit-redis 3
    ("b829ec02dca78a148dfc75dd3c86f488ed007c68", Script::CountHit),
    // rate-limit-redis 4
    ("3f424a504987d231baa2e19159bb5def8ad32f87", Script::CountHit),
    // rate-limit-redis 5
    ("81dbecea94d2d10514719b20ed51faf711529d9d", Script::CountHitInWindow),
    // cashews
    ("b948f76fda6b97319d3426a2fb42b0d4f02c7146", Script::DeleteIfEqual),
    // Laravel
    ("647c65a442733a1aa440f99908d249d13b4d6c4a", Script::DeleteIfEqual),
    // redis-py
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", Script::DeleteIfEqual),
    // node-redlock 4
    ("0f0f23b9048b36752b5be114f357ba083449f908", Script::DeleteIfEqual),
    // node-redlock 5
    ("e4612211c9f8f51c257e26e056b0a654b3187242", Script::DeleteIfEqual),
    // redlock-py
    ("4e92fdc63815b3a0a2dd1c1df3694de73607c88d", Script::DeleteIfEqual),
    // redis-py
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", Script::ExpireMillisIfEqual),
    // redsync
    ("d75bb8b5bd13532ddedd17762e772346e39b321e", Script::ExpireMillisIfEqual),
    // redsync
    ("b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79", Script::ExpireOrLock),
    // redis-py
    ("a4e8783852e6b949f9ef3a97212805108459a890", Script::ExtendIfEqual),
    // django-redis
    ("4d15273b16b10c15e1d9202cbe93c959ab7d250b", Script::Increment),
    // django-redis
    ("f4a7da3e5d8ea3b46642af08427151cae0190400", Script::IncrementExisting),
    // cashews
    ("0f8a745c1b5efe281bd1299ea0d1b2994c6ae601", Script::IncrementForMillis),
    // limits
    ("628bd136a573a06b346879695681af12ccef300f", Script::IncrementForSeconds),
    // node-redlock 4
    ("e5a322e2634ef59a516e8ea150cb085afafee684", Script::LockForMillis),
    // node-redlock 5
    ("96da70f7716f27d278a5218544df37fd8b0a5e4c", Script::LockForMillis),
    // redsync
    ("e950836ed1e694540c503ef9972b8de518044d3b", Script::ReleaseLock),
    // node-redlock 4
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", Script::RelockForMillis),
    // node-redlock 5
    ("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", Script::RelockForMillis),
    // rate-limit-redis 5
    ("6aeb97ed6086dcdeafdc6fda3999a0d0e38ec96a", Script::ShowHits),
];

impl Script {
    /// Recognises a script by its text.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Option<Self> {
        find(&NORMAL_FORMS, &hash_of(&normal_form(text)?))
    }

    /// Recognises a script by the hash of its text, as a known library sends it.
    #[must_use]
    pub fn of_hash(hash: &ScriptHash) -> Option<Self> {
        find(&TEXTS, hash)
    }
}

fn find(table: &[(&str, Script)], hash: &ScriptHash) -> Option<Script> {
    let digits = hex(hash);
    table.iter().find(|(known, _)| *known == digits).map(|(_, script)| *script)
}
