//! The hashes of known scripts. A comment names the libraries that send each script. The file
//! contains no script texts. The example `script_hash` prints the hashes of a text.
//!
//! To add a script, add its hashes here, and test it with its library
//! (`tests/clients/test_redis_scripts.py`).

use super::hash::{ScriptHash, hash_of, hex};
use super::kind::Script;
use super::normal_form::normal_form;

/// The hashes of normal forms.
static NORMAL_FORMS: [(&str, Script); 102] = [
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
    // Other normal forms of the same scripts, from many programs.
    ("005a2d211705dc7b1866ada631b98666fb00dcdc", Script::DeleteIfEqual),
    ("e3b6e4dc77f3c5710f7645ea0a8fa598b01935b1", Script::DeleteIfEqual),
    ("9bb455507f577d5732837a222d54810e186039d4", Script::DeleteIfEqual),
    ("de1da8380403f62a23adb6b61c3de053049adf36", Script::DeleteIfEqual),
    ("6ebaecaab379f53c632ea9a2abf535d2bf247b20", Script::DeleteIfEqual),
    ("32ab3e9830585b167d2bffce9410d956b880acdd", Script::DeleteIfEqual),
    ("78a10449a22c53900ef1bdde3553e772e5d44888", Script::DeleteIfEqual),
    ("16b16b6ed742f743999e29ad7c3e094beb213db8", Script::DeleteIfEqual),
    ("b736f6e5ff090a0738b64ff86d6a2ac9c437c163", Script::DeleteIfEqual),
    ("b9ae59b276fcf8e0db6fce49a21edd280e49d036", Script::DeleteIfEqual),
    ("b6f21f9c6c64e03bbe86eb71a58304c5dbaccb72", Script::DeleteIfEqual),
    ("fe27839c7457398a39e0cf9a8c83e4eb79d46a0d", Script::DeleteIfEqual),
    ("92ec27800766c40d14a05f6ac15c96484709d746", Script::DeleteIfEqual),
    ("4d4ebcb0f6138801f3688034ca98693667822196", Script::DeleteIfEqual),
    ("d62cf473cc825674074616c6e4dd1c76b0e91d52", Script::DeleteIfEqual),
    ("ce671d84f58b1becfbb46195b58c1481c50ee39a", Script::DeleteIfEqual),
    ("d5d8f7613d69a724df2e785de6613a4b8a7b41b9", Script::DeleteIfEqual),
    ("72700343aeb414fe5bac42cd40ac1d432882d813", Script::DeleteIfEqual),
    ("88760cd9adb7056ab510b5ba55dcba4f3d27f82c", Script::DeleteIfEqual),
    ("5698e40a14bc413f80773fec993b0a150155d76b", Script::DeleteIfEqual),
    ("0cd7d12e82f0fa063049bfa47d902b52687c0e84", Script::DeleteIfEqual),
    ("999c423e8af33065b85fd7505479c3a02a9a4b72", Script::DeleteIfEqual),
    ("5ef162e90dfa364d049fdae4ad79c37e1ee7f053", Script::DeleteIfEqual),
    ("6113581f5694649ee61051666ea3934a0920faaf", Script::DeleteIfEqual),
    ("1c3d543b35768e75db0bb1138db3e089c4d26997", Script::DeleteIfEqual),
    ("184c18d25ad37c1b7d5f4fbddc4a0d03cd01593a", Script::DeleteIfEqual),
    ("12fb63a5a1a53e6d3103297063a970330560b6b9", Script::DeleteIfEqual),
    ("d2a84bed8047759b6c6118b4037e69cc2e1b04a8", Script::DeleteIfEqual),
    ("020f2cbff1e9b8d67e904e573cde4d8222a76951", Script::DeleteIfEqual),
    ("71c6d2364c7f5db9749334f18608d50fcaf273c8", Script::DeleteIfEqual),
    ("378be16e9d96f57a5959a90b0cca366ba602c422", Script::DeleteIfEqual),
    ("7d776a7bdfce4f889c3ad64784a6dea2a96f232d", Script::DeleteIfEqual),
    ("a9ccfda65fe302a3b7ef17ae28d2b4fa3d08e01e", Script::DeleteIfEqual),
    ("ddcba2f7dd12c035f155b9be5e711cff200949b3", Script::DeleteIfEqual),
    ("334c53ff461aff25baebf1c871e160160d294f55", Script::DeleteIfEqual),
    ("492066cf5a8574917e1887372293d04fc1ad77fe", Script::DeleteIfEqual),
    ("81debccd22765da5b4d55c2d7f880bfb4db2f119", Script::DeleteIfEqual),
    ("193ca1095f478e31382446b0d8e06c6a73b420e8", Script::DeleteIfEqual),
    ("23f340878d3998238905e79197f0425fa38d653f", Script::DeleteIfEqual),
    ("082108eb19de4cceb632ff0a5992f93f9c20b37d", Script::ExpireMillisIfEqual),
    ("e290bfc686ca2d5ff20537de1000c7c71be624e0", Script::ExpireMillisIfEqual),
    ("ef56e66f73bf3f289ef4a44948f8719d72ecb051", Script::ExpireMillisIfEqual),
    ("159be0cf91e95b4274a4d4314ec16f044ca17d4c", Script::ExpireMillisIfEqual),
    ("a2a4e6e1dfb98a97ddbc20f440201fb01bd2aa66", Script::ExpireMillisIfEqual),
    ("d09ed15eca061d2c5311a38639fa7ab5dbe9c074", Script::ExpireMillisIfEqual),
    ("0bbc07ca83afe375ad759a370a5b6bf3137ebdbf", Script::ExpireMillisIfEqual),
    ("2f49f2c43bf4e392f6c0c595577671f5e16b3e8a", Script::ExpireMillisIfEqual),
    ("aad266b4a67987f3b5839dd5494d41d878af8e5c", Script::ExpireMillisIfEqual),
    ("91f438bfc5b2f27a1329924dad2993329915403d", Script::ExpireMillisIfEqual),
    ("e6337c844161bf3d33165ab2a69651690abee0a2", Script::ExpireMillisIfEqual),
    ("eb0d6835d1fb67dabf09a3ed212f5eab62e539b8", Script::ExpireMillisIfEqual),
    ("e0a9012977d9f7ba219083f26dc13ecfd8d88798", Script::ExpireMillisIfEqual),
    ("d6f0e2775c6447e895d6d10331e007feade028aa", Script::ExpireMillisIfEqual),
    ("e1fb6d7464c2aeffa76da77efdba226e005d62ca", Script::ExpireMillisIfEqual),
    ("439d7aa84a3ec2ec9ec63b6963e12bce0af30bed", Script::ExpireMillisIfEqual),
    ("3347ab82d8eed1761b1008b2775c6ef45fe4d988", Script::ExpireMillisIfEqual),
    ("c46d4b803933a1f4a2652413476369e4644cd33d", Script::ExpireMillisIfEqual),
    ("c06b3f8c06b7e35192e5a95144ba2d490671b6f3", Script::ExpireMillisIfEqual),
    ("e066c29571457d490ee6799982d45a8e9c495285", Script::ExpireSecondsIfEqual),
    ("5532626916439facc93f593a273c781c8af139bc", Script::ExpireSecondsIfEqual),
    ("c912b50832e786577069f43dce1cfcd58f8c3e69", Script::ExpireSecondsIfEqual),
    ("201acf27f538366a0f9ace1c189c3f9a1dbc3dc6", Script::ExpireSecondsIfEqual),
    ("9a52c3ad0c80b85640c965da80800faa954d197d", Script::ExpireSecondsIfEqual),
    ("0399ea05d1d18d89dd0621fd68cc43c79eda4049", Script::ExpireSecondsIfEqual),
    ("83f51b96a548c77bfd4280930c2d7f780c6eab21", Script::ExpireSecondsIfEqual),
    ("7580d64f98eca76ea63a97bf92710e8aaedbb70b", Script::ExpireSecondsIfEqual),
    ("6b7d6abce6aa265e26e72661e374fce59c5ce689", Script::ExpireSecondsIfEqual),
    ("85de630ad0322f14b56d6db9ea5df23d16948c36", Script::ExpireSecondsIfEqual),
    ("4f6ae60ca2d6a194c650b9895eb64d88de181daf", Script::ExpireSecondsIfEqual),
    ("60fcced9497934a0f6bea7b08b8f92d8e6eff493", Script::ExpireSecondsIfEqual),
    ("c5eb8646bd8e8dea1d90e9f3ae1b268069356137", Script::ExpireSecondsIfEqual),
    ("17756ad0c6b7dc48cebffd5604b6acc8946e8d24", Script::ExpireSecondsIfEqual),
    ("2561d42eed27c2af45c35b030044dbcd7991914e", Script::ExpireSecondsIfEqual),
    ("17bb5d5c9f5519c3820b913be34cee57bae36642", Script::ExpireSecondsIfEqual),
    ("84bd49e6095c7a272a26b72c8a35c63dc6276995", Script::ExpireSecondsIfEqual),
    ("a9b705784e34608be2ae1a0397098e92a81a2bfe", Script::ExpireSecondsIfEqual),
    ("4ff95fd5f0a41e49a1645b637242f1a9ab7823c7", Script::ExpireSecondsIfEqual),
];

/// The hashes of unmodified texts. `EVALSHA` accepts these hashes without an earlier `EVAL` or
/// `SCRIPT LOAD`. This is necessary because a node of a cluster forwards an `EVALSHA` to the owner
/// of the key, where the client may not have loaded the script.
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

    /// Recognises a script by the hash of the text that a known library sends.
    #[must_use]
    pub fn of_hash(hash: &ScriptHash) -> Option<Self> {
        find(&TEXTS, hash)
    }
}

fn find(table: &[(&str, Script)], hash: &ScriptHash) -> Option<Script> {
    let digits = hex(hash);
    table.iter().find(|(known, _)| *known == digits).map(|(_, script)| *script)
}
