//! Examples: what stands at the end of each command's help.

pub(crate) const REPLAY: &str = "\
Examples:
  larder replay mine.pickle                   as it was recorded
  larder replay mine.pickle --memory 24GiB    on 24 GiB, all of it for the program
  larder replay mine.pickle --conf expandable_segments:True --json";

pub(crate) const COMPARE: &str = "\
Examples:
  larder compare mine.pickle                  the settings that people try first
  larder compare mine.pickle --conf '' --conf max_split_size_mb:128
  larder compare mine.pickle --card H200      where a memory fraction was in force";

pub(crate) const SHOW: &str = "\
Examples:
  larder show mine.pickle                     the first failure, or else the peak
  larder show mine.pickle --at end";

pub(crate) const EXPLAIN: &str = "\
Examples:
  larder explain mine.pickle                  the first request that failed
  larder explain mine.pickle --failure 2
  larder explain mine.pickle --card H200      where a memory fraction was in force
  larder explain mine.pickle --error run.log  the same, as PyTorch's error in a log says it
  larder explain mine.pickle --memory 24GiB   what would fail on a smaller card

The exit code is 0 where a request failed, 3 where requests were met only when the cache had been
given back, and 4 where nothing was near to failing.";

pub(crate) const FIT: &str = "\
Examples:
  larder fit mine.pickle
  larder fit mine.pickle --cards 16,24,48,80
  larder fit mine.pickle --cards L4,A100-40,H100,H200";

pub(crate) const TUNE: &str = "\
Examples:
  larder tune mine.pickle                     what holds least
  larder tune mine.pickle --memory 24GiB      what runs on 24 GiB
  larder tune mine.pickle --policy torch-2.11 --json";

pub(crate) const TOP: &str = "\
Examples:
  larder top mine.tape                        a tape that a program writes
  larder top 9400 --once                      a program that serves its statistics";

pub(crate) const BENCH: &str = "\
Examples:
  larder bench mine.pickle
  larder bench hot_block.ops --repeat 1000000 --threads 4";

pub(crate) const SNAPSHOT: &str = "\
Examples:
  larder snapshot mine.pickle -o mine.ops
  larder snapshot mine.pickle -o mine.perfetto.json.gz
  larder snapshot mine.ops -o mine.pickle --memory 24GiB";

pub(crate) const REPORT: &str = "\
Examples:
  larder report mine.pickle --open
  larder report before.pickle after.pickle -o both.html";

pub(crate) const DIFF: &str = "\
Examples:
  larder diff before.pickle after.pickle
  larder diff before.pickle after.pickle --grew-by 2%

The exit code is 5 where the most that is held at once grew by more than --grew-by.";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  larder completions bash > ~/.local/share/bash-completion/completions/larder
  larder completions zsh > ~/.zfunc/_larder
  larder completions fish > ~/.config/fish/completions/larder.fish";

pub(crate) const MAN: &str = "\
Examples:
  larder man > ~/.local/share/man/man1/larder.1
  larder man explain | man -l -";
