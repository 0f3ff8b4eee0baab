# The lines above set: job_folder, python, notice_s, max_requeues, command.
me=$SLURM_JOB_ID attempts=$job_folder/attempts.txt node=${SLURMD_NODENAME:-$(hostname)} program= early= again=
if [ -n "$SLURM_ARRAY_TASK_ID" ]; then
    # The id of an array's last task is also the id of the whole array.
    me=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID attempts=$attempts.$SLURM_ARRAY_TASK_ID
fi
note() {
    echo "$* $(date +%s)" >> "$attempts"
}
give_up() {
    echo "trainkit: $1"
    note end 1
    exit 1
}
slurm_says() {
    SLURM_TIME_FORMAT=standard scontrol show job --oneliner "$me" | grep -o " $1=[^ ]*" | head -n 1 | cut -d= -f2-
}
submit_again() {
    [ -z "$again" ] || return
    if [ "${SLURM_RESTART_COUNT:-0}" -ge "$max_requeues" ]; then
        echo "trainkit: the job was submitted again $max_requeues times, and is not submitted again: see --max-requeues"
        return
    fi
    # The controller may be away for a moment.
    for _ in 1 2 3 4 5; do
        case "$(slurm_says JobState) $(slurm_says Reason)" in
            RUNNING\ * | *\ TimeLimit) scontrol requeue "$me" && again=1 && break ;;
            " ") ;;
            *) return ;; # Somebody has cancelled the job, or Slurm itself submits it again.
        esac
        sleep 5
    done
    if [ -n "$again" ]; then
        echo "trainkit: the program ended early: the job is submitted again, and resumes"
    else
        echo "trainkit: the program ended early, but Slurm does not accept the job again: submit it again to continue"
    fi
}

# A job that has ended well may have been submitted again at its last moment.
if tail -n 1 "$attempts" 2>/dev/null | grep -q '^end 0 '; then exit 0; fi
note start "$node"
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || echo "trainkit: attempt $((SLURM_RESTART_COUNT + 1)) begins on $node"
if ! problem=$("$python" -c "import trainkit" 2>&1); then
    echo "$problem"
    give_up "$python on $node can't import trainkit, as the lines above say: name another Python with --python, or load modules in the settings of the cluster"
fi
# Older releases of Slurm do not set SLURM_JOB_END_TIME.
unset TRAINKIT_JOB_END_TIME
if end=$(date -d "$(slurm_says EndTime)" +%s 2>/dev/null); then
    export TRAINKIT_JOB_END_TIME=$end
    [ $((end - $(date +%s))) -gt "$notice_s" ] ||
        give_up "the time limit of this job leaves too little time before the notice: give a larger --time, or a --signal-before below $notice_s"
fi

# Before the time limit, Slurm sends SIGUSR1 to this shell alone. At the limit and at a cancel, Slurm sends SIGTERM to
# all processes, and SIGKILL soon after.
trap 'signalled=1; if [ -n "$program" ]; then kill -USR1 "$program" 2>/dev/null; else early=1; fi' USR1
trap 'signalled=1; [ "$(slurm_says Reason)" != TimeLimit ] || submit_again' TERM
"${command[@]}" &
program=$!
[ -z "$early" ] || kill -USR1 "$program"
# If Slurm's keeper of this job is killed, nobody else ends the program, and the next attempt would meet it.
# A user may not see other users' processes in /proc, but the parent of this shell's own process.
(while grep -q "^PPid:[[:space:]]*$PPID\$" /proc/$$/status; do sleep 2; done; kill "$program") 2>/dev/null &
watcher=$!
disown "$watcher"
signalled=1
while [ -n "$signalled" ]; do
    signalled=
    # A signal interrupts `wait`. The code of a program that has ended is kept for the next `wait`.
    wait "$program"
    code=$?
done
kill "$watcher" 2>/dev/null
note end "$code"
case $code in
    138 | 143) submit_again ;; # The program ended early, by SIGUSR1, SIGTERM or stop_before_s.
esac
[ -z "$again" ] || exit 0
exit "$code"
