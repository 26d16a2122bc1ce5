# Completes words of hamiregion in fish, which reads this file when such a command is typed.
hamiregion completion fish | source
