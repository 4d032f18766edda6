# Small programs with one bottleneck each: `mixed SCENE`.
#
# `lock`: six threads lock one shared variable. `queue`: consumers of a slow producer. `compute`: threads
# compute.
use strict;
use warnings;
use threads;
use threads::shared;
use Time::HiRes 'usleep';

my $turn : shared = 0;
my @jobs : shared;

sub locked {
    for (1 .. 60) {
        lock $turn;
        $turn++;
        usleep 1500;
    }
}

sub consume {
    while (1) {
        my $job;
        {
            lock @jobs;
            cond_wait @jobs until @jobs;
            $job = shift @jobs;
        }
        return if !$job;
        usleep 1000;
    }
}

sub produce {
    for (1 .. 150) {
        usleep 4000;
        lock @jobs;
        push @jobs, 1;
        cond_signal @jobs;
    }
    lock @jobs;
    push @jobs, 0, 0, 0;
    cond_broadcast @jobs;
}

sub compute {
    my $sum = 0;
    $sum = ($sum * 31 + $_) % 1000003 for 1 .. 8_000_000;
}

my %scenes = (
    lock => [(\&locked) x 6],
    queue => [\&produce, (\&consume) x 3],
    compute => [(\&compute) x 4],
);
my $scene = $scenes{ $ARGV[0] // '' } or exit 2;
$_->join for map { threads->create($_) } @$scene;
