# Small programs with one bottleneck each: `mixed SCENE`.
#
# `mutex`: six threads under one mutex. `gvl`: threads that compute share the interpreter's lock. `queue`:
# consumers of a slow producer. `sleep`: threads that sleep.
def in_threads(count, &work)
  count.times.map { |index| Thread.new(index, &work) }.each(&:join)
end

def mutex
  mutex = Mutex.new
  in_threads(6) { 60.times { mutex.synchronize { sleep 0.0015 } } }
end

def gvl
  in_threads(4) { (1..6_000_000).reduce { |sum, i| (sum * 31 + i) % 1_000_003 } }
end

def queue
  jobs = Queue.new
  in_threads(4) do |index|
    if index.zero?
      150.times { sleep 0.004; jobs << 1 }
      3.times { jobs << 0 }
    else
      sleep 0.001 while jobs.pop == 1
    end
  end
end

def sleeps
  in_threads(4) { 80.times { sleep 0.01 } }
end

{ 'mutex' => :mutex, 'gvl' => :gvl, 'queue' => :queue, 'sleep' => :sleeps }.fetch(ARGV[0]).then { send(_1) }
