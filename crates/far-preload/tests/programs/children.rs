//! Child processes that lose a server.

use azekura_far::Mechanism;
use azekura_far::launch::Launch;

use crate::end_of;
use crate::support::{launch, mechanisms, server};

#[test]
fn a_child_continues_and_starts_programs_when_one_of_two_servers_is_lost() {
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    for mechanism in mechanisms().into_iter().filter(gives) {
        let (mut first, second) = (server(), server());
        let servers = [&first, &second].map(|server| server.address().to_string()).into();
        let setting = Launch { mechanism, servers, copies: 2, ..launch(&second) };
        let out = end_of("child", &setting, || first.shutdown());
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"0\n"[..]), "{mechanism}: {said}");
        let begins = "begins without a server: cannot connect";
        assert!(said.contains("is lost") && said.contains(begins), "{mechanism}: {said}");
    }
}
